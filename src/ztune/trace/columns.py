"""The columns of a trace's events, for Arrow. See docs/trace-format.md.

Apart from the words of the format: those are needed where nobody waits for Arrow.
"""

from __future__ import annotations

import pyarrow as pa

EVENTS = pa.schema(
    [
        pa.field("t", pa.int64(), nullable=False),  # ns since the trace began, at the start of the call
        pa.field("dur", pa.int64(), nullable=False),  # ns
        pa.field("pid", pa.int32(), nullable=False),
        pa.field("tid", pa.int32(), nullable=False),
        pa.field("op", pa.uint8(), nullable=False),
        pa.field("via", pa.uint8(), nullable=False),
        pa.field("flags", pa.uint16(), nullable=False),
        pa.field("file", pa.int32(), nullable=False),  # index into the manifest's files, -1 for none
        pa.field("file2", pa.int32(), nullable=False),  # second file, -1 for none
        pa.field("offset", pa.int64(), nullable=False),  # bytes, -1 where it means nothing
        pa.field("size", pa.int64(), nullable=False),  # bytes really transferred, not asked for
        # ns from the end of another thread's sync, for which this thread waited, to t; 0: none, or not known
        pa.field("since_sync", pa.uint32(), nullable=False),
        # ns that it waited for others' syncs since its last call
        pa.field("waited", pa.uint32(), nullable=False),
    ]
)
BEFORE_8 = pa.schema([field for field in EVENTS if field.name not in ("since_sync", "waited")])
"""The columns of traces before version 8 of the format: what they lack is 0."""
