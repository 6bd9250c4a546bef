#include "model.h"

#include <math.h>

/*
 * Short seeks grow with the square root of the distance (the arm accelerates), long ones linearly (it coasts):
 * Ruemmler & Wilkes, "An introduction to disk drive modeling", IEEE Computer 27(3), 1994.  A random seek spans a
 * third of the disk on average, so the two parts meet at the average seek time there.
 */
double model_seek_ms(const model_profile_t *p, double share)
{
	const double third = 1.0 / 3.0;

	if (share <= 0.0)
		return 0.0;
	if (share >= 1.0)
		return p->seek_full_ms;
	if (share < third)
		return p->seek_track_ms + (p->seek_avg_ms - p->seek_track_ms) * sqrt(share / third);
	return p->seek_avg_ms + (p->seek_full_ms - p->seek_avg_ms) * (share - third) / (1.0 - third);
}
