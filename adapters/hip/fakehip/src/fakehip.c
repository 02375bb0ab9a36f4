// A vendor runtime without a GPU. Device memory is a memfd that is mapped twice: the address that is handed out is PROT_NONE, so that
// any touch by a CPU (a load, a store, read(2), a registration with a NIC) fails, and copies go by a second mapping. Streams are
// threads, so what is asynchronous there is so here. Copies in the wrong direction and out of their allocation are refused.
//
// Built by package fakehip with RUNTIME=hip or cuda (the prefix of every symbol), CONTROL (a file with struct control, which the test
// maps too), and optionally WITHOUT_BATCH, WITHOUT_DMABUF, WITHOUT_RANGE, WITHOUT_MALLOC, CUDA13 (where calls and structs differ).
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define API(name) JOIN(RUNTIME, name)

enum { OK = 0, INVALID = 1, NO_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101, NOT_READY = 600, REGISTERED = 712, NOT_REGISTERED = 713 };
enum { H2H, H2D, D2H, D2D, ANY };

// Mirrored by package fakehip, word by word.
struct control {
  _Atomic int64_t devices, version, memory, delay_us;
  _Atomic int64_t hang;       // not 0: streams carry nothing out
  _Atomic int64_t block;      // not 0: copies block where they are submitted
  _Atomic int64_t fail_async; // this code befalls the next operation, and shows at the wait
  _Atomic int64_t gone;       // this code is what every call says
  _Atomic int64_t singles, rects, batches, high, low; // operations submitted, and by the priority of their stream
  _Atomic int64_t allocations, streams, events, registered, imported; // that live
};
static struct control *ctl;

__attribute__((constructor)) static void map_control(void) {
  int fd = open(CONTROL, O_RDWR | O_CLOEXEC);
  if (fd >= 0) ctl = mmap(NULL, sizeof *ctl, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (fd < 0 || ctl == MAP_FAILED) abort();
  close(fd);
}

enum kind { DEVICE, HOST };
struct alloc {
  char *at, *shadow;
  size_t n, mapped;
  int fd, ordinal;
  pid_t owner; // of imported memory; else 0
  enum kind kind;
  struct alloc *next;
};
static struct alloc *head;
static size_t used[16];
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int current;
static _Thread_local int last;

static int say(int e) {
  if (ctl->gone) e = ctl->gone;
  if (e) last = e;
  return e;
}

static struct alloc *find(const void *p) {
  for (struct alloc *a = head; a; a = a->next)
    if ((char *)p >= a->at && (char *)p < a->at + a->n) return a;
  return NULL;
}

// resolve finds where a copy goes: the shadow of device memory, host memory as it is. It fails for what leaves its allocation and
// for imported memory whose owner has died.
static int resolve(const void *p, size_t n, char **to, int *device) {
  struct alloc *a = find(p);
  *device = a && a->kind == DEVICE;
  *to = (char *)p;
  if (!*device) return OK;
  size_t off = (char *)p - a->at;
  if (n > a->n - off) return INVALID;
  if (a->owner && kill(a->owner, 0) != 0 && errno == ESRCH) return INVALID;
  *to = a->shadow + off;
  return OK;
}

static struct alloc *map_twice(int fd, size_t n, pid_t owner) {
  size_t mapped = (n + 4095) & ~(size_t)4095;
  char *shadow = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  char *at = mmap(NULL, mapped, PROT_NONE, MAP_SHARED, fd, 0);
  if (shadow == MAP_FAILED || at == MAP_FAILED) return NULL;
  struct alloc *a = calloc(1, sizeof *a);
  *a = (struct alloc){at, shadow, n, mapped, fd, current, owner, DEVICE, head};
  head = a;
  return a;
}

int API(Init)(unsigned flags) { (void)flags; return say(ctl->devices ? OK : INVALID_DEVICE); }
int API(GetDeviceCount)(int *n) { *n = ctl->devices; return say(*n ? OK : NO_DEVICE); }
int API(RuntimeGetVersion)(int *v) { *v = ctl->version; return OK; }
int API(GetLastError)(void) { int e = last; last = 0; return e; }

int API(SetDevice)(int d) {
  if (d < 0 || d >= ctl->devices) return say(INVALID_DEVICE);
  current = d;
  return say(OK);
}

int API(DeviceGetPCIBusId)(char *s, int n, int d) {
  if (d < 0 || d >= ctl->devices) return say(INVALID_DEVICE);
  snprintf(s, n, "0000:%02x:00.0", d + 1);
  return say(OK);
}

const char *API(GetErrorString)(int e) {
  switch (e) {
  case OK: return "no error";
  case INVALID: return "invalid argument";
  case NO_MEMORY: return "out of memory";
  case NO_DEVICE: return "no device is detected";
  case INVALID_DEVICE: return "invalid device ordinal";
  case NOT_READY: return "device not ready";
  case REGISTERED: return "memory is registered already";
  case NOT_REGISTERED: return "memory is not registered";
  default: return "unknown error";
  }
}

#ifndef WITHOUT_MALLOC
int API(Malloc)(void **p, size_t n) {
  int e = NO_MEMORY;
  pthread_mutex_lock(&mu);
  if (used[current] + n <= (size_t)ctl->memory) {
    int fd = syscall(SYS_memfd_create, "fakehip", 1);
    struct alloc *a = fd >= 0 && ftruncate(fd, (n + 4095) & ~(size_t)4095) == 0 ? map_twice(fd, n, 0) : NULL;
    if (a) {
      *p = a->at;
      used[current] += n;
      ctl->allocations++;
      e = OK;
    }
  }
  pthread_mutex_unlock(&mu);
  return say(e);
}
#endif

static int drop(void *p, int imported) {
  int e = INVALID;
  pthread_mutex_lock(&mu);
  for (struct alloc **a = &head; *a; a = &(*a)->next) {
    struct alloc *x = *a;
    if (x->at != p || x->kind != DEVICE || (x->owner != 0) != imported) continue;
    *a = x->next;
    munmap(x->at, x->mapped);
    munmap(x->shadow, x->mapped);
    close(x->fd);
    if (imported) {
      ctl->imported--;
    } else {
      ctl->allocations--;
      used[x->ordinal] -= x->n;
    }
    free(x);
    e = OK;
    break;
  }
  pthread_mutex_unlock(&mu);
  return say(e);
}

int API(Free)(void *p) { return p ? drop(p, 0) : OK; }

int API(MemGetInfo)(size_t *free_, size_t *total) {
  pthread_mutex_lock(&mu);
  *total = ctl->memory;
  *free_ = *total - used[current];
  pthread_mutex_unlock(&mu);
  return say(OK);
}

struct stream;
struct copy { char *dst, *src; size_t width, height, dpitch, spitch; struct copy *next; };
struct stream {
  pthread_t thread;
  pthread_mutex_t m;
  pthread_cond_t more;
  struct copy *first, **tail;
  uint64_t asked, done;
  int stop, error, high;
};
struct event { struct stream *s; uint64_t after; };

// copy checks one at submission and carries it out later, as a device does.
static int check(char *dst, char *src, size_t width, size_t height, size_t dpitch, size_t spitch, int kind, struct copy *c) {
  if (height > 1 && (dpitch < width || spitch < width)) return INVALID;
  int to, from;
  pthread_mutex_lock(&mu);
  int e = resolve(dst, (height - 1) * dpitch + width, &c->dst, &to) || resolve(src, (height - 1) * spitch + width, &c->src, &from);
  pthread_mutex_unlock(&mu);
  if (e) return INVALID;
  if (kind != ANY && kind != ((from ? 2 : 0) | (to ? 1 : 0))) return INVALID;
  c->width = width, c->height = height, c->dpitch = dpitch, c->spitch = spitch;
  return OK;
}

static void carry_out(struct stream *s, struct copy *c) {
  if (ctl->delay_us) usleep(ctl->delay_us);
  while (ctl->hang && !s->stop) usleep(200);
  int e = s->stop ? OK : atomic_exchange(&ctl->fail_async, 0);
  if (e) {
    s->error = e;
    return;
  }
  for (size_t i = 0; i < c->height && !s->stop; i++) memmove(c->dst + i * c->dpitch, c->src + i * c->spitch, c->width);
}

static void *work(void *v) {
  struct stream *s = v;
  pthread_mutex_lock(&s->m);
  for (;;) {
    while (!s->first && !s->stop) pthread_cond_wait(&s->more, &s->m);
    struct copy *c = s->first;
    if (!c) break;
    s->first = c->next;
    if (!s->first) s->tail = &s->first;
    pthread_mutex_unlock(&s->m);
    carry_out(s, c);
    free(c);
    pthread_mutex_lock(&s->m);
    s->done++;
  }
  pthread_mutex_unlock(&s->m);
  return NULL;
}

static int enqueue(struct stream *s, char *dst, char *src, size_t width, size_t height, size_t dpitch, size_t spitch, int kind) {
  while (ctl->block) usleep(200);
  if (!s || ctl->gone) return INVALID;
  struct copy *c = calloc(1, sizeof *c);
  int e = check(dst, src, width, height, dpitch, spitch, kind, c);
  if (e) {
    free(c);
    return e;
  }
  if (s->high) ctl->high++;
  else ctl->low++;
  pthread_mutex_lock(&s->m);
  *s->tail = c;
  s->tail = &c->next;
  s->asked++;
  pthread_cond_signal(&s->more);
  pthread_mutex_unlock(&s->m);
  return OK;
}

int API(MemcpyAsync)(void *d, const void *s, size_t n, int kind, void *stream) {
  ctl->singles++;
  return say(enqueue(stream, d, (char *)s, n, 1, n, n, kind));
}

int API(Memcpy2DAsync)(void *d, size_t dpitch, const void *s, size_t spitch, size_t width, size_t height, int kind, void *stream) {
  ctl->rects++;
  return say(enqueue(stream, d, (char *)s, width, height, dpitch, spitch, kind));
}

#ifndef WITHOUT_BATCH
#ifdef CUDA13
#define FAILED
#define SET_FAILED(i)
#else
#define FAILED size_t *failed,
#define SET_FAILED(i) *failed = (i)
#endif
int API(MemcpyBatchAsync)(void **d, void **s, size_t *n, size_t count, void *attrs, size_t *first, size_t nattrs, FAILED void *stream) {
  if (!attrs || nattrs != 1 || first[0] != 0 || !stream) return say(INVALID);
  ctl->batches++;
  for (size_t i = 0; i < count; i++) {
    int e = enqueue(stream, d[i], s[i], n[i], 1, n[i], n[i], ANY);
    if (e) {
      SET_FAILED(i);
      return say(e);
    }
  }
  return say(OK);
}
#endif

int API(DeviceGetStreamPriorityRange)(int *least, int *greatest) { *least = 0, *greatest = -1; return say(OK); }

int API(StreamCreateWithPriority)(void **p, unsigned flags, int priority) {
  (void)flags;
  struct stream *s = calloc(1, sizeof *s);
  s->tail = &s->first;
  s->high = priority < 0;
  pthread_mutex_init(&s->m, NULL);
  pthread_cond_init(&s->more, NULL);
  pthread_create(&s->thread, NULL, work, s);
  ctl->streams++;
  *p = s;
  return say(OK);
}

int API(StreamDestroy)(void *p) {
  struct stream *s = p;
  pthread_mutex_lock(&s->m);
  s->stop = 1;
  pthread_cond_signal(&s->more);
  pthread_mutex_unlock(&s->m);
  pthread_join(s->thread, NULL);
  free(s);
  ctl->streams--;
  return say(OK);
}

int API(EventCreateWithFlags)(void **p, unsigned flags) { (void)flags; *p = calloc(1, sizeof(struct event)); ctl->events++; return say(OK); }
int API(EventDestroy)(void *p) { free(p); ctl->events--; return say(OK); }

int API(EventRecord)(void *p, void *stream) {
  struct event *e = p;
  e->s = stream;
  pthread_mutex_lock(&e->s->m);
  e->after = e->s->asked;
  pthread_mutex_unlock(&e->s->m);
  return say(OK);
}

int API(EventQuery)(void *p) {
  struct event *e = p;
  if (!e->s) return say(OK);
  pthread_mutex_lock(&e->s->m);
  int r = e->s->done < e->after ? NOT_READY : e->s->error;
  if (r != NOT_READY) e->s->error = 0;
  pthread_mutex_unlock(&e->s->m);
  return say(r);
}

struct attributes {
  int type, device;
  void *device_pointer, *host_pointer;
#ifdef CUDA13
  long reserved[8];
#else
  int managed;
  unsigned flags;
#endif
};

// Of an unknown pointer HIP says that the value is invalid. Its types begin at host in version 5 and at unregistered since.
int API(PointerGetAttributes)(struct attributes *to, const void *p) {
  int five = ctl->version / 10000000 == 5;
  pthread_mutex_lock(&mu);
  struct alloc *a = find(p);
  if (a) {
    memset(to, 0x5a, sizeof *to); // all of it is the library's to write
    to->type = (a->kind == DEVICE ? 2 : 1) - five;
    to->device = a->ordinal;
    to->device_pointer = (void *)p;
    to->host_pointer = a->kind == HOST ? (void *)p : NULL;
  }
  pthread_mutex_unlock(&mu);
  return say(a ? OK : INVALID);
}

int API(HostRegister)(void *p, size_t n, unsigned flags) {
  (void)flags;
  pthread_mutex_lock(&mu);
  int e = find(p) ? REGISTERED : OK;
  if (!e) {
    struct alloc *a = calloc(1, sizeof *a);
    *a = (struct alloc){.at = p, .n = n, .fd = -1, .kind = HOST, .next = head};
    head = a;
    ctl->registered++;
  }
  pthread_mutex_unlock(&mu);
  return say(e);
}

int API(HostUnregister)(void *p) {
  int e = NOT_REGISTERED;
  pthread_mutex_lock(&mu);
  for (struct alloc **a = &head; *a; a = &(*a)->next) {
    struct alloc *x = *a;
    if (x->at != p || x->kind != HOST) continue;
    *a = x->next;
    free(x);
    ctl->registered--;
    e = OK;
    break;
  }
  pthread_mutex_unlock(&mu);
  return say(e);
}

#ifndef WITHOUT_RANGE
int API(MemGetAddressRange)(void **base, size_t *n, void *p) {
  pthread_mutex_lock(&mu);
  struct alloc *a = find(p);
  if (a) *base = a->at, *n = a->n;
  pthread_mutex_unlock(&mu);
  return say(a ? OK : INVALID);
}
#endif

struct handle { char magic[8]; int pid, fd; size_t n; char rest[40]; };

int API(IpcGetMemHandle)(struct handle *h, void *p) {
  memset(h, 0, sizeof *h);
  pthread_mutex_lock(&mu);
  struct alloc *a = find(p);
  int ok = a && a->kind == DEVICE && !a->owner;
  if (ok) *h = (struct handle){"FAKEHIP", getpid(), a->fd, a->n, ""};
  pthread_mutex_unlock(&mu);
  return say(ok ? OK : INVALID);
}

// A handle is of no use to the process that made it, as with the real ones.
int API(IpcOpenMemHandle)(void **p, struct handle h, unsigned flags) {
  (void)flags;
  char path[64];
  if (memcmp(h.magic, "FAKEHIP", 8) || h.pid == getpid()) return say(INVALID);
  snprintf(path, sizeof path, "/proc/%d/fd/%d", h.pid, h.fd);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return say(INVALID);
  pthread_mutex_lock(&mu);
  struct alloc *a = map_twice(fd, h.n, h.pid);
  pthread_mutex_unlock(&mu);
  if (!a) return say(NO_MEMORY);
  ctl->imported++;
  *p = a->at;
  return say(OK);
}

int API(IpcCloseMemHandle)(void *p) { return drop(p, 1); }

#ifndef WITHOUT_DMABUF
int API(MemGetHandleForAddressRange)(void *to, void *p, size_t n, int type, unsigned long long flags) {
  (void)flags;
  if (type != 1) return say(INVALID);
  pthread_mutex_lock(&mu);
  struct alloc *a = find(p); // the file is the whole of it
  int fd = a && a->kind == DEVICE && a->at == p && a->n == n ? dup(a->fd) : -1;
  pthread_mutex_unlock(&mu);
  *(int *)to = fd;
  return say(fd < 0 ? INVALID : OK);
}
#endif
