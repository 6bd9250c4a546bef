/*
 * Some packages install this header in the wrong place or not at all.  The real one is used where it can be found.
 */
#if __has_include_next(<sys/abd_impl_os.h>)
#include_next <sys/abd_impl_os.h>
#elif __has_include(<abd_impl_os.h>)
#include <abd_impl_os.h>
#else
/* Nothing in it is used by the engine. */
#endif
