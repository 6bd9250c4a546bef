"""The lab: a throw-away virtual machine with a Debian kernel, OpenZFS and this host's programs, read-only.

``ztune.lab.build`` makes it, once per version of OpenZFS; ``ztune.lab.guest.Guest`` is a running one. The
recipe of what runs inside is in the folder ``lab/`` of the source.
"""

from __future__ import annotations

from ztune.lab.guest import Guest

__all__ = ["Guest"]
