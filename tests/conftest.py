"""What all tests need."""

import signal

# A shell that starts pytest in the background has it ignore interrupts, nohup hang-ups, and with it all that
# tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
