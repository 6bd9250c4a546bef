#include "waits.h"

#include <math.h>

void wait_add(wait_sum_t *w, int kind, double seconds, double each)
{
	double part = each * (each - 1.0);

	if (each <= 1.0) {
		w->exact += seconds * each;
		return;
	}
	w->of[kind].seconds += seconds * each;
	w->of[kind].calls += each;
	w->of[kind].weight += part;
	w->of[kind].sum += part * seconds;
	w->of[kind].square += part * seconds * seconds;
}

/* What all threads have of a kind: the mean of a call, and the variances of one call and between threads' means. */
typedef struct {
	double mean, call, threads;
} spread_t;

static spread_t spread_of(const wait_sum_t *w, size_t n, int kind)
{
	double seconds = 0, calls = 0, weight = 0, sum = 0, square = 0;
	spread_t s = {0, 0, 0};

	for (size_t i = 0; i < n; i++) {
		seconds += w[i].of[kind].seconds;
		calls += w[i].of[kind].calls;
		weight += w[i].of[kind].weight;
		sum += w[i].of[kind].sum;
		square += w[i].of[kind].square;
	}
	if (calls <= 0)
		return s;
	s.mean = seconds / calls;
	s.call = fmax((square - 2 * s.mean * sum + s.mean * s.mean * weight) / weight, 0.0);
	for (size_t i = 0; i < n; i++) {
		double mine = w[i].of[kind].calls, apart;

		if (mine <= 0)
			continue;
		apart = w[i].of[kind].seconds / mine - s.mean;
		s.threads += mine / calls * (apart * apart - s.call * w[i].of[kind].weight / (mine * mine));
	}
	s.threads = fmax(s.threads, 0.0);
	return s;
}

double wait_most(const wait_sum_t *w, size_t n, const double (*calls)[WAIT_KINDS])
{
	spread_t s[WAIT_KINDS];
	double most = 0;

	for (int k = 0; k < WAIT_KINDS; k++)
		s[k] = spread_of(w, n, k);
	for (size_t i = 0; i < n; i++) {
		double all = w[i].exact;

		for (int k = 0; k < WAIT_KINDS; k++) {
			double mine = w[i].of[k].calls, whole = calls != NULL ? calls[i][k] : mine, each = s[k].mean;

			if (mine > 0 && s[k].threads > 0) {
				double chance = s[k].call * w[i].of[k].weight / (mine * mine);

				each += s[k].threads / (s[k].threads + chance) * (w[i].of[k].seconds / mine - each);
			}
			all += each * whole;
		}
		most = fmax(most, all);
	}
	return most;
}
