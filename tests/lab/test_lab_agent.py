"""The guest's agent, compiled into a program of ours that hands it frames: no guest is started."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ztune.lab import recipe

HEAD = """
#define main agent_main
#include "{agent}"
#undef main

static void begin(uint32_t id, uint32_t flags)
{{
	static const char words[] = "/\\0sleep\\0" "60";
	unsigned char payload[12 + sizeof words] = {{0}};
	put32(payload, flags);
	put32(payload + 8, 2);
	memcpy(payload + 12, words, sizeof words);
	handle(F_RUN, id, payload, sizeof payload);
}}

static void send_signal(uint32_t id, uint32_t number)
{{
	unsigned char payload[4];
	put32(payload, number);
	handle(F_SIGNAL, id, payload, sizeof payload);
}}

int main(void)
{{
	sigset_t set;
	port = open("/dev/null", O_WRONLY | O_CLOEXEC);
	sigfillset(&set);
	sigprocmask(SIG_SETMASK, &set, NULL);
	{body}
	return 0;
}}
"""


def run(folder: Path, body: str) -> str:
    """Compile the agent with ``body`` as its main program, and return what that prints."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    source, program = folder / "driven.c", folder / "driven"
    source.write_text(HEAD.format(agent=recipe.AGENT, body=body))
    subprocess.run([compiler, "-w", "-o", program, source], check=True)
    return subprocess.run([program], capture_output=True, text=True, check=True, timeout=30).stdout


def test_a_signal_right_after_the_start_is_not_lost(tmp_path: Path) -> None:
    """As from a client that asks for a command and is gone: the command must not stay for ever."""
    assert run(tmp_path, """
	int ended = 0;
	for (uint32_t id = 1; id <= 20; id++) {
		begin(id, 0);
		send_signal(id, SIGTERM);
		for (int i = 0; i < 200 && find(id)->status < 0; i++, reap())
			usleep(5000);
		ended += find(id)->status == 128 + SIGTERM;
		kill(find(id)->pid, SIGKILL);
	}
	printf("%d", ended);
""") == "20"  # fmt: skip


def test_the_end_of_input_of_a_full_terminal_holds_up_nobody(tmp_path: Path) -> None:
    """Nor is it lost: it comes when there is room."""
    assert run(tmp_path, """
	unsigned char none = 0, byte;
	int full[2];
	begin(2, RUN_PTY);
	/* A pipe in its place: when a terminal is full hangs on when the kernel passes on what came before. */
	pipe2(full, O_NONBLOCK);
	dup2(full[1], find(2)->in);
	while (write(find(2)->in, "x", 1) == 1);
	handle(F_EOF, 2, &none, 0);
	printf("%d", find(2)->in >= 0);
	while (read(full[0], &byte, 1) == 1);
	feed(find(2));
	printf("%d%d", find(2)->in >= 0, read(full[0], &byte, 1) == 1 ? byte : -1);
	kill(find(2)->pid, SIGKILL);
""") == "104"  # fmt: skip
