#include "cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define MIN(a, b) ((a) < (b) ? (a) : (b))

static void *need(void *p)
{
	if (p == NULL) {
		(void)fprintf(stderr, "ztune-disk: out of memory\n");
		abort(); /* as a power cut: nothing half written */
	}
	return p;
}

static void update(extent_t *e)
{
	e->min_seq = e->seq;
	if (e->left != NULL)
		e->min_seq = MIN(e->min_seq, e->left->min_seq);
	if (e->right != NULL)
		e->min_seq = MIN(e->min_seq, e->right->min_seq);
}

/* Extents before off to the left, the others to the right. */
static void split(extent_t *root, uint64_t off, extent_t **left, extent_t **right)
{
	if (root == NULL) {
		*left = *right = NULL;
	} else if (root->off < off) {
		split(root->right, off, &root->right, right);
		update(root);
		*left = root;
	} else {
		split(root->left, off, left, &root->left);
		update(root);
		*right = root;
	}
}

static extent_t *join(extent_t *left, extent_t *right)
{
	if (left == NULL || right == NULL)
		return left != NULL ? left : right;
	if (left->priority > right->priority) {
		left->right = join(left->right, right);
		update(left);
		return left;
	}
	right->left = join(left, right->left);
	update(right);
	return right;
}

/* The last extent that begins before off. */
static extent_t *before(const cache_t *c, uint64_t off)
{
	extent_t *found = NULL;

	for (extent_t *e = c->root; e != NULL;)
		if (e->off < off) {
			found = e;
			e = e->right;
		} else {
			e = e->left;
		}
	return found;
}

extent_t *cache_at(const cache_t *c, uint64_t off)
{
	extent_t *found = NULL;

	for (extent_t *e = c->root; e != NULL;)
		if (e->off >= off) {
			found = e;
			e = e->left;
		} else {
			e = e->right;
		}
	return found;
}

extent_t *cache_oldest(const cache_t *c)
{
	extent_t *e = c->root;

	while (e != NULL && e->seq != e->min_seq)
		e = e->left != NULL && e->left->min_seq == e->min_seq ? e->left : e->right;
	return e;
}

uint64_t cache_min_seq(const cache_t *c)
{
	return c->root != NULL ? c->root->min_seq : UINT64_MAX;
}

static void insert(cache_t *c, extent_t *e)
{
	extent_t *left, *right;

	split(c->root, e->off, &left, &right);
	c->root = join(join(left, e), right);
	c->bytes += e->len;
	c->extents++;
}

extent_t *cache_take(cache_t *c, uint64_t off)
{
	extent_t *left, *rest, *one, *right;

	split(c->root, off, &left, &rest);
	split(rest, off + 1, &one, &right);
	c->root = join(left, right);
	if (one != NULL) {
		c->bytes -= one->len;
		c->extents--;
	}
	return one;
}

void extent_free(extent_t *e)
{
	if (e != NULL) {
		free(e->data);
		free(e);
	}
}

static void free_below(extent_t *e)
{
	if (e == NULL)
		return;
	free_below(e->left);
	free_below(e->right);
	extent_free(e);
}

void cache_clear(cache_t *c)
{
	free_below(c->root);
	c->root = NULL;
	c->bytes = c->extents = 0;
}

static extent_t *make(cache_t *c, uint64_t off, uint32_t len, const uint8_t *data, uint64_t seq, int64_t time)
{
	extent_t *e = need(calloc(1, sizeof(*e)));

	e->off = off;
	e->len = e->room = len;
	if (data != NULL) {
		e->data = need(malloc(len));
		memcpy(e->data, data, len);
	}
	e->seq = e->min_seq = seq;
	e->time = time;
	/* xorshift: all that a treap needs */
	c->random ^= c->random == 0 ? 0x9e3779b97f4a7c15ull : 0;
	c->random ^= c->random << 13;
	c->random ^= c->random >> 7;
	c->random ^= c->random << 17;
	e->priority = (uint32_t)(c->random >> 32);
	return e;
}

/* As cache_drop; hands back the age of the oldest write that was touched. */
static void carve(cache_t *c, uint64_t off, uint64_t len, uint64_t *seq, int64_t *time)
{
	uint64_t end = off + len;
	extent_t *e = before(c, off);

	if (e == NULL || e->off + e->len <= off)
		e = cache_at(c, off);
	while (e != NULL && e->off < end) {
		uint64_t e_end = e->off + e->len;

		e = cache_take(c, e->off);
		if (e->seq < *seq) {
			*seq = e->seq;
			*time = e->time;
		}
		if (e_end > end)
			insert(c,
			    make(c, end, (uint32_t)(e_end - end), e->data != NULL ? e->data + (end - e->off) : NULL,
				e->seq, e->time));
		if (e->off < off) {
			e->len = (uint32_t)(off - e->off);
			e->left = e->right = NULL;
			update(e);
			insert(c, e);
		} else {
			extent_free(e);
		}
		e = e_end < end ? cache_at(c, e_end) : NULL;
	}
}

void cache_drop(cache_t *c, uint64_t off, uint64_t len)
{
	uint64_t seq = UINT64_MAX;
	int64_t time = 0;

	carve(c, off, len, &seq, &time);
}

bool cache_write(cache_t *c, uint64_t off, uint32_t len, const uint8_t *data, uint64_t seq, int64_t time)
{
	extent_t *e = before(c, off + 1);

	/* Overwritten before it went out: it keeps its age, because a flush may be waiting for what it replaces. */
	if (e != NULL && off + len <= e->off + e->len) {
		if (data != NULL)
			memcpy(e->data + (off - e->off), data, len);
		return true;
	}
	carve(c, off, len, &seq, &time);
	e = before(c, off);
	if (e == NULL || e->off + e->len != off || e->len + (uint64_t)len > CACHE_RUN) {
		insert(c, make(c, off, len, data, seq, time));
		return false;
	}
	/* Goes on where another ends. */
	e = cache_take(c, e->off);
	if (e->len + len > e->room) {
		e->room = MIN(CACHE_RUN, MAX(e->room * 2, e->len + len));
		if (data != NULL)
			e->data = need(realloc(e->data, e->room));
	}
	if (data != NULL)
		memcpy(e->data + e->len, data, len);
	e->len += len;
	if (seq < e->seq) {
		e->seq = seq;
		e->time = time;
	}
	e->left = e->right = NULL;
	update(e);
	insert(c, e);
	return true;
}

void cache_read(const cache_t *c, uint64_t off, uint32_t len, uint8_t *buf)
{
	uint64_t end = off + len;
	const extent_t *e = before(c, off);

	if (e == NULL || e->off + e->len <= off)
		e = cache_at(c, off);
	for (; e != NULL && e->off < end; e = cache_at(c, e->off + e->len)) {
		uint64_t from = MAX(off, e->off), to = MIN(end, e->off + e->len);

		memcpy(buf + (from - off), e->data + (from - e->off), to - from);
	}
}

bool cache_covers(const cache_t *c, uint64_t off, uint64_t len)
{
	uint64_t end = off + len;
	const extent_t *e = before(c, off + 1);

	while (e != NULL && e->off <= off && e->off + e->len > off) {
		off = e->off + e->len;
		if (off >= end)
			return true;
		e = cache_at(c, off);
	}
	return false;
}
