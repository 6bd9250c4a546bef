/* One-sentence errors handed up by the parsers. */
#ifndef ZTUNE_ERR_H
#define ZTUNE_ERR_H

#include <stdarg.h>
#include <stdio.h>

typedef struct err {
	char text[768];
} err_t;

/* Writes the sentence and returns -1, so that callers can `return err_set(...)`. */
static inline int __attribute__((format(printf, 2, 3))) err_set(err_t *e, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(e->text, sizeof(e->text), fmt, ap);
	va_end(ap);
	/* What the user wrote may hold line ends; an error is one line. */
	for (char *p = e->text; *p != '\0'; p++)
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			*p = '?';
	return -1;
}

enum exit_code { EXIT_FAILED = 1, EXIT_INPUT = 2, EXIT_SELFCHECK = 4, EXIT_LIMIT = 5, EXIT_SIGNAL = 130 };

#endif
