#include "spread.h"

#include <stdlib.h>

void spread_add(spread_t *s, double here, double whole)
{
	spread_end_t before = s->n > 0 ? s->end[s->n - 1] : (spread_end_t){0, 0};

	if (s->n == s->room && (s->end = realloc(s->end, (s->room = s->room * 2 + 64) * sizeof(*s->end))) == NULL)
		abort();
	s->end[s->n++] = (spread_end_t){before.here + here, before.whole + whole};
}

double spread_times(const spread_t *s)
{
	spread_end_t all = s->n > 0 ? s->end[s->n - 1] : (spread_end_t){0, 0};

	return all.here > 0 && all.whole > all.here ? all.whole / all.here : 1.0;
}

double spread_share(const spread_t *s, double share)
{
	spread_end_t from = {0, 0}, all = s->n > 0 ? s->end[s->n - 1] : from;
	double at = share * all.here;
	size_t low = 0, high = s->n;

	if (all.here <= 0 || all.whole <= 0)
		return share;
	/* The first part that ends behind it. */
	while (low < high) {
		size_t middle = (low + high) / 2;

		if (s->end[middle].here > at)
			high = middle;
		else
			low = middle + 1;
	}
	if (low == s->n)
		return 1.0;
	if (low > 0)
		from = s->end[low - 1];
	return (from.whole + (s->end[low].whole - from.whole) * (at - from.here) / (s->end[low].here - from.here)) /
	    all.whole;
}

void spread_free(spread_t *s)
{
	free(s->end);
	*s = (spread_t){0};
}
