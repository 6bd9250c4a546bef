/* How much too late the last answer was sent: whoever waited for it would have asked again as much earlier. */
#ifndef ZTUNE_LATE_H
#define ZTUNE_LATE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
	int64_t lag, replied;
	bool sending; /* an answer that late_sent has not seen */
} late_t;

#define LATE_NONE ((late_t){.replied = INT64_MIN})

/* An answer that was due at a time goes out. */
static inline void late_reply(late_t *l, int64_t due)
{
	l->replied = due;
	l->sending = true;
}

/* It is out.  More than lag_max is not made up for. */
static inline void late_sent(late_t *l, int64_t now, int64_t lag_max)
{
	int64_t lag;

	if (!l->sending)
		return;
	l->sending = false;
	lag = now > l->replied ? now - l->replied : 0;
	l->lag = lag < lag_max ? lag : lag_max;
}

/* When a request that comes now would have come. */
static inline int64_t late_arrival(const late_t *l, int64_t now)
{
	int64_t earlier = now - l->lag > l->replied ? now - l->lag : l->replied;

	return now < earlier ? now : earlier;
}

#endif
