"""What the programs share that do what they are told, line by line: ``ztune.onhost.jobs.conversation`` tells.

Such a program runs as the database's user, under the recorder, and can be killed without harm. It imports
nothing of ztune but this module, which ``conversation.text_of`` puts into its text.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def say(**what: Any) -> None:
    """Answer one line: ``progress``, ``done`` or ``error``."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def serve(program: object, plain: tuple[type[Exception], ...] = ()) -> None:
    """Do what standard input says until it ends: each line is the name of a method of ``program``, a tab, and
    a JSON object of its arguments; what it returns is the answer.

    ``plain``: errors that speak for themselves, without their kind.
    """
    for line in sys.stdin:
        word, _, arguments = line.partition("\t")
        try:
            found = getattr(program, word)(**json.loads(arguments))
        except plain as error:
            say(error=str(error))
        except Exception as error:
            say(error=f"{type(error).__name__}: {error}")
        else:
            say(done=found)
