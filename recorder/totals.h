/* What the observer's BPF programs add up, and its loader hands to ztune. Little or big endian as the host;
 * observe/live_kernel.py holds the same layout as numpy types. Keep in step. */
#ifndef ZTUNE_TOTALS_H
#define ZTUNE_TOTALS_H

/* Histograms: 0 counts zeros, i counts 2^(i-1) to 2^i - 1, the last all above. */
#define ZT_SIZES 34
#define ZT_LATENCIES 44

enum zt_what { ZT_READS = 0, ZT_WRITES = 1, ZT_SYNCS = 2, ZT_MAPPED_WRITABLE = 3, ZT_MAPPED = 4 };

/* One file, one system call, one processor: none waits for another. */
struct zt_key {
	unsigned int file;
	unsigned short call; /* number of the system call; of asynchronous I/O, of the one that submits */
	unsigned short what; /* enum zt_what */
	unsigned int cpu;
};

struct zt_totals {
	unsigned long long ns;
	unsigned long long bytes;
	unsigned long long sequential;
	unsigned long long aligned;
	unsigned long long overwritten; /* bytes */
	unsigned long long synced;
	unsigned long long direct;
	unsigned long long sizes[ZT_SIZES];
	unsigned long long latency[ZT_LATENCIES]; /* their sum is the number of calls */
};

/* All calls of one number by observed tasks, on whatever. */
struct zt_spent {
	unsigned long long ns;
	unsigned long long errors;
	unsigned long long latency[ZT_LATENCIES];
};

/* Of tasks, since each was observed first. */
struct zt_sums {
	unsigned long long ran; /* ns on a processor */
	unsigned long long voluntary;
	unsigned long long involuntary;
	unsigned long long tasks;
};

#define ZT_FILES (1 << 18) /* that can be told apart */

#endif
