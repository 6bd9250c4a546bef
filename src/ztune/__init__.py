"""ztune: finds the ZFS layout that suits a database, and proves it."""

__version__ = "0.1.0"
