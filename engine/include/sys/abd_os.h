/*
 * Some packages install this header in the wrong place or not at all.  The real one is used where it can be found.
 */
#if __has_include_next(<sys/abd_os.h>)
#include_next <sys/abd_os.h>
#elif __has_include(<abd_os.h>)
#include <abd_os.h>
#else
#include <sys/types.h>
struct abd_scatter {
	unsigned int abd_offset, abd_iovcnt;
	struct iovec *abd_vector;
};
struct abd_linear {
	void *abd_buf;
};
#endif
