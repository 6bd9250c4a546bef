"""Threads in virtual time, in a program of their own: what tries again and again gets there, or is ended."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from engine_build import ROOT

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
SOURCE = ROOT / "engine" / "src"
PROGRAM = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "vtime.h"

static pthread_mutex_t lock;

static void *hold(void *unused)
{
	pthread_mutex_lock(&lock);
	usleep(1000);
	pthread_mutex_unlock(&lock);
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t holder;
	int64_t began = vtime_now();

	(void)argv;
	pthread_create(&holder, NULL, hold, NULL);
	usleep(10);
	if (argc > 1) {
		vtime_limit(1);
		for (;;)
			continue;
	}
	while (pthread_mutex_trylock(&lock) != 0)
		continue;
	printf("%lld\\n", (long long)(vtime_now() - began));
	return 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("virtual-time")
    (folder / "program.c").write_text(PROGRAM)
    build = ["cc", "-D_GNU_SOURCE", "-std=gnu11", "-Werror", "-I", str(SOURCE)]
    names = [str(folder / "program.c"), str(SOURCE / "vtime.c")]
    subprocess.run([*build, "-o", str(folder / "program"), *names], check=True)
    return folder / "program"


def test_who_tries_a_lock_until_it_is_free_lets_time_pass_for_who_has_it(program: Path) -> None:
    done = subprocess.run([program], capture_output=True, text=True, check=True, timeout=60)
    assert 1_000_000 <= int(done.stdout) < 1_100_000  # ns: it is held for 1 ms


def test_who_goes_on_for_ever_is_ended_and_the_reason_said(program: Path) -> None:
    done = subprocess.run([program, "for ever"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "goes on for ever" in done.stderr
