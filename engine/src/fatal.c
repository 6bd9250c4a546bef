#include "fatal.h"

#include <execinfo.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "err.h"

static const char *what_for;

static void say(const char *text)
{
	(void)!write(STDERR_FILENO, text, strlen(text));
}

/* OpenZFS's own consistency checks end in abort(), after a line that says which.  Any other fault says where it was. */
static void on_fault(int sig)
{
	void *frame[32];

	/* A fault in here must not come back here. */
	(void)signal(sig, SIG_DFL);
	backtrace_symbols_fd(frame, backtrace(frame, 32), STDERR_FILENO);
	say("OpenZFS stopped itself ");
	say(what_for);
	say(sig == SIGABRT ? " (a failed check" : sig == SIGFPE ? " (a division by zero" : " (a wrong address");
	say(" inside the library).\n");
	_exit(EXIT_FAILED);
}

void fatal_catch(const char *while_)
{
	void *frame[1];

	what_for = while_;
	/* The first call loads a library, which a signal handler must not do. */
	(void)backtrace(frame, 1);
	(void)signal(SIGABRT, on_fault);
	(void)signal(SIGSEGV, on_fault);
	(void)signal(SIGBUS, on_fault);
	(void)signal(SIGFPE, on_fault);
}
