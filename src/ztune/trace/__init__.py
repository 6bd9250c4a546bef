"""The recorded file I/O of a workload: how it is recorded, kept, read and summarised."""
