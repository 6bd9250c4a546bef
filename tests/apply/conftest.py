from conftest_apply import machine, no_zfs

__all__ = ["machine", "no_zfs"]
