// The vendor library's calls by their place in a table, for both vendors: the names differ in their prefix only. Every function
// returns the library's own code. Addresses and handles are integers here, so that no Go pointer is made of them.
#ifndef SPANPOOL_HIPRT_H
#define SPANPOOL_HIPRT_H
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

enum {
	GET_DEVICE_COUNT, SET_DEVICE, MALLOC, FREE, MEM_GET_INFO, MEMCPY_ASYNC, MEMCPY_2D_ASYNC, STREAM_CREATE_WITH_PRIORITY, STREAM_DESTROY,
	STREAM_PRIORITY_RANGE, EVENT_CREATE_WITH_FLAGS, EVENT_RECORD, EVENT_QUERY, EVENT_DESTROY, HOST_REGISTER, HOST_UNREGISTER,
	POINTER_GET_ATTRIBUTES, IPC_GET_MEM_HANDLE, IPC_OPEN_MEM_HANDLE, IPC_CLOSE_MEM_HANDLE, GET_ERROR_STRING, GET_LAST_ERROR,
	RUNTIME_GET_VERSION, DEVICE_GET_PCI_BUS_ID,
	MEMCPY_BATCH_ASYNC, MEM_GET_HANDLE_FOR_ADDRESS_RANGE, MEM_GET_ADDRESS_RANGE, // optional
	NUM_SYMBOLS
};

struct hiprt {
	void *sym[NUM_SYMBOLS];
	int batch_without_index; // CUDA from 13: no index of what failed
};

struct hiprt_rect { uint64_t dst, src, width, height, dpitch, spitch, kind; };
struct hiprt_ipc { char b[64]; };

static inline void *hiprt_dlopen(const char *path) { return dlopen(path, RTLD_NOW | RTLD_LOCAL); }

#define CALL(h, i, ...) ((int (*)(__VA_ARGS__))(h)->sym[i])

static inline int hiprt_device_count(struct hiprt *h, int *n) { return CALL(h, GET_DEVICE_COUNT, int *)(n); }
static inline int hiprt_set_device(struct hiprt *h, int d) { return CALL(h, SET_DEVICE, int)(d); }
static inline int hiprt_last_error(struct hiprt *h) { return CALL(h, GET_LAST_ERROR, void)(); }
static inline int hiprt_version(struct hiprt *h, int *v) { return CALL(h, RUNTIME_GET_VERSION, int *)(v); }
static inline const char *hiprt_text(struct hiprt *h, int e) { return ((const char *(*)(int))h->sym[GET_ERROR_STRING])(e); }

static inline int hiprt_pci(struct hiprt *h, int d, char *to, int n) {
	return CALL(h, DEVICE_GET_PCI_BUS_ID, char *, int, int)(to, n, d);
}
static inline int hiprt_malloc(struct hiprt *h, uint64_t n, uint64_t *at) {
	void *p = NULL;
	int e = CALL(h, MALLOC, void **, size_t)(&p, n);
	*at = (uintptr_t)p;
	return e;
}
static inline int hiprt_free(struct hiprt *h, uint64_t at) { return CALL(h, FREE, void *)((void *)(uintptr_t)at); }
static inline int hiprt_mem_info(struct hiprt *h, uint64_t *avail, uint64_t *total) {
	size_t f = 0, t = 0;
	int e = CALL(h, MEM_GET_INFO, size_t *, size_t *)(&f, &t);
	*avail = f, *total = t;
	return e;
}
static inline int hiprt_host_register(struct hiprt *h, void *p, uint64_t n) { return CALL(h, HOST_REGISTER, void *, size_t, unsigned)(p, n, 1); }
static inline int hiprt_host_unregister(struct hiprt *h, void *p) { return CALL(h, HOST_UNREGISTER, void *)(p); }

// Not blocking (1): nothing here waits for the null stream.
static inline int hiprt_stream_create(struct hiprt *h, int high, uint64_t *s) {
	int least = 0, greatest = 0;
	int e = CALL(h, STREAM_PRIORITY_RANGE, int *, int *)(&least, &greatest);
	if (e) return e;
	void *p = NULL;
	e = CALL(h, STREAM_CREATE_WITH_PRIORITY, void **, unsigned, int)(&p, 1, high ? greatest : least);
	*s = (uintptr_t)p;
	return e;
}
static inline int hiprt_stream_destroy(struct hiprt *h, uint64_t s) { return CALL(h, STREAM_DESTROY, void *)((void *)(uintptr_t)s); }

// Without timing (2).
static inline int hiprt_event_create(struct hiprt *h, uint64_t *ev) {
	void *p = NULL;
	int e = CALL(h, EVENT_CREATE_WITH_FLAGS, void **, unsigned)(&p, 2);
	*ev = (uintptr_t)p;
	return e;
}
static inline int hiprt_event_destroy(struct hiprt *h, uint64_t ev) { return CALL(h, EVENT_DESTROY, void *)((void *)(uintptr_t)ev); }

// Source access in the order of the stream (1); no hint of where the memory is.
struct hiprt_batch_attributes { int order, src_type, src_id, dst_type, dst_id; unsigned flags; };

static inline int hiprt_batch(struct hiprt *h, const uint64_t *dst, const uint64_t *src, const uint64_t *len, size_t n, void *stream) {
	struct hiprt_batch_attributes a = {1, 0, 0, 0, 0, 0};
	size_t first = 0, failed = 0;
	void *f = h->sym[MEMCPY_BATCH_ASYNC];
	if (h->batch_without_index)
		return ((int (*)(const uint64_t *, const uint64_t *, const uint64_t *, size_t, void *, size_t *, size_t, void *))f)(dst, src, len, n, &a, &first, 1, stream);
	return ((int (*)(const uint64_t *, const uint64_t *, const uint64_t *, size_t, void *, size_t *, size_t, size_t *, void *))f)(dst, src, len, n, &a, &first, 1, &failed, stream);
}

// hiprt_submit queues all of a round and marks its end. *recorded says whether there is an end to wait for.
static inline int hiprt_submit(struct hiprt *h, const uint64_t *dst, const uint64_t *src, const uint64_t *len, const uint64_t *kind, size_t n,
	const struct hiprt_rect *rects, size_t nrects, uint64_t stream_, uint64_t event, int *recorded) {
	void *stream = (void *)(uintptr_t)stream_;
	int e = 0;
	if (n > 1 && h->sym[MEMCPY_BATCH_ASYNC]) {
		e = hiprt_batch(h, dst, src, len, n, stream);
	} else {
		for (size_t i = 0; i < n && !e; i++)
			e = CALL(h, MEMCPY_ASYNC, void *, const void *, size_t, int, void *)((void *)(uintptr_t)dst[i], (void *)(uintptr_t)src[i], len[i], kind[i], stream);
	}
	for (size_t i = 0; i < nrects && !e; i++) {
		const struct hiprt_rect *r = &rects[i];
		e = CALL(h, MEMCPY_2D_ASYNC, void *, size_t, const void *, size_t, size_t, size_t, int, void *)(
			(void *)(uintptr_t)r->dst, r->dpitch, (void *)(uintptr_t)r->src, r->spitch, r->width, r->height, r->kind, stream);
	}
	int re = CALL(h, EVENT_RECORD, void *, void *)((void *)(uintptr_t)event, stream);
	*recorded = re == 0;
	if (e || re) hiprt_last_error(h);
	return e ? e : re;
}

// hiprt_wait asks whether an event has come for at most budget nanoseconds: at once, then after pauses that double to half a
// millisecond. 600 (not ready) is the answer when it has not.
static inline int hiprt_wait(struct hiprt *h, uint64_t event, int64_t budget) {
	int64_t pause = 0;
	for (int i = 0;; i++) {
		int e = CALL(h, EVENT_QUERY, void *)((void *)(uintptr_t)event);
		if (e) hiprt_last_error(h);
		if (e != 600 || budget <= 0) return e;
		if (i < 32) continue;
		pause = pause == 0 ? 5000 : pause < 500000 ? 2 * pause : pause;
		struct timespec t = {0, pause};
		nanosleep(&t, NULL);
		budget -= pause;
	}
}

// What the library fills has two words that are read and a size that grows: 24 to 32 bytes, and 88 from CUDA 13 on. There is room to spare.
struct hiprt_attributes { int type, device; char rest[248]; };
_Static_assert(sizeof(struct hiprt_attributes) >= 88, "the library writes past what CUDA 13 calls its attributes");

static inline int hiprt_pointer(struct hiprt *h, uint64_t at, int *type, int *device) {
	struct hiprt_attributes a = {0};
	int e = CALL(h, POINTER_GET_ATTRIBUTES, void *, const void *)(&a, (void *)(uintptr_t)at);
	*type = a.type, *device = a.device;
	return e;
}
static inline int hiprt_ipc_get(struct hiprt *h, uint64_t at, struct hiprt_ipc *to) {
	return CALL(h, IPC_GET_MEM_HANDLE, struct hiprt_ipc *, void *)(to, (void *)(uintptr_t)at);
}
// Peer access is enabled when it is needed (1).
static inline int hiprt_ipc_open(struct hiprt *h, const struct hiprt_ipc *from, uint64_t *at) {
	void *p = NULL;
	int e = CALL(h, IPC_OPEN_MEM_HANDLE, void **, struct hiprt_ipc, unsigned)(&p, *from, 1);
	*at = (uintptr_t)p;
	return e;
}
static inline int hiprt_ipc_close(struct hiprt *h, uint64_t at) { return CALL(h, IPC_CLOSE_MEM_HANDLE, void *)((void *)(uintptr_t)at); }

static inline int hiprt_extent(struct hiprt *h, uint64_t at, uint64_t *base, uint64_t *n) {
	void *b = NULL;
	size_t size = 0;
	int e = CALL(h, MEM_GET_ADDRESS_RANGE, void **, size_t *, void *)(&b, &size, (void *)(uintptr_t)at);
	*base = (uintptr_t)b, *n = size;
	return e;
}

// The type of handle is a dma-buf (1).
static inline int hiprt_dmabuf(struct hiprt *h, uint64_t at, uint64_t n, int *fd) {
	return CALL(h, MEM_GET_HANDLE_FOR_ADDRESS_RANGE, void *, void *, size_t, int, unsigned long long)(fd, (void *)(uintptr_t)at, n, 1, 0);
}
#endif
