//go:build linux && cgo && rdma

package verbs

/*
#cgo noescape sp_post
#cgo nocallback sp_post
#include <stdlib.h>
#include <string.h>
#include <infiniband/verbs.h>

struct sp_wr {
	uint64_t id, remote;
	uint32_t rkey, first, count, opcode, signaled;
};

// sp_post posts a chain and says how many were taken.
static int sp_post(struct ibv_qp *qp, struct sp_wr *in, int n, struct ibv_sge *sges, struct ibv_send_wr *wrs, int *taken) {
	struct ibv_send_wr *bad = NULL;
	for (int i = 0; i < n; i++) {
		struct ibv_send_wr *w = &wrs[i];
		memset(w, 0, sizeof *w);
		w->wr_id = in[i].id; w->next = i + 1 < n ? w + 1 : NULL;
		w->sg_list = sges + in[i].first; w->num_sge = in[i].count;
		w->opcode = in[i].opcode; w->send_flags = in[i].signaled ? IBV_SEND_SIGNALED : 0;
		w->wr.rdma.remote_addr = in[i].remote; w->wr.rdma.rkey = in[i].rkey;
	}
	int rc = ibv_post_send(qp, wrs, &bad);
	*taken = rc && bad ? (int)(bad - wrs) : rc ? 0 : n;
	return rc;
}
*/
import "C"

import "unsafe"

// Opcode is what a request does.
type Opcode uint32

// The opcodes.
const (
	Read  Opcode = C.IBV_WR_RDMA_READ
	Write Opcode = C.IBV_WR_RDMA_WRITE
	Send  Opcode = C.IBV_WR_SEND
)

// Chain is send requests that are posted by one call. It is C memory of a fixed size, reused from chain to chain.
type Chain struct {
	wrs   []C.struct_sp_wr
	sges  []C.struct_ibv_sge
	room  *C.struct_ibv_send_wr
	nw    int
	ns    int
	taken *C.int
}

// NewChain has room for so many requests of so many scatter entries each.
func NewChain(wrs, sges int) *Chain {
	alloc := func(n int, size C.size_t) unsafe.Pointer { return C.calloc(C.size_t(n), size) }
	return &Chain{
		wrs:   unsafe.Slice((*C.struct_sp_wr)(alloc(wrs, C.sizeof_struct_sp_wr)), wrs),
		sges:  unsafe.Slice((*C.struct_ibv_sge)(alloc(wrs*sges, C.sizeof_struct_ibv_sge)), wrs*sges),
		room:  (*C.struct_ibv_send_wr)(alloc(wrs, C.sizeof_struct_ibv_send_wr)),
		taken: (*C.int)(alloc(1, C.sizeof_int)),
	}
}

// Free gives the memory back. The chain is not to be used after that.
func (c *Chain) Free() {
	C.free(unsafe.Pointer(unsafe.SliceData(c.wrs)))
	C.free(unsafe.Pointer(unsafe.SliceData(c.sges)))
	C.free(unsafe.Pointer(c.room))
	C.free(unsafe.Pointer(c.taken))
}

// Reset empties the chain.
func (c *Chain) Reset() { c.nw, c.ns = 0, 0 }

// Len is the number of requests in it.
func (c *Chain) Len() int { return c.nw }

// Begin adds a request without scatter entries. Precondition: there is room.
func (c *Chain) Begin(id uint64, op Opcode, remote uint64, rkey uint32, signaled bool) {
	w := &c.wrs[c.nw]
	*w = C.struct_sp_wr{id: C.uint64_t(id), remote: C.uint64_t(remote), rkey: C.uint32_t(rkey), first: C.uint32_t(c.ns), opcode: C.uint32_t(op)}
	if signaled {
		w.signaled = 1
	}
	c.nw++
}

// Signal makes the last request tell of its completion.
func (c *Chain) Signal() { c.wrs[c.nw-1].signaled = 1 }

// Local adds a scatter entry to the last request. Precondition: there is room.
func (c *Chain) Local(addr uint64, n, lkey uint32) {
	c.sges[c.ns] = C.struct_ibv_sge{addr: C.uint64_t(addr), length: C.uint32_t(n), lkey: C.uint32_t(lkey)}
	c.ns++
	c.wrs[c.nw-1].count++
}

// Post posts the chain to a queue pair and says how many requests of it were taken.
//
//	int ibv_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr);
func (c *Chain) Post(q *QP) (taken int, err error) {
	if c.nw == 0 {
		return 0, nil
	}
	e := C.sp_post(q.q, unsafe.SliceData(c.wrs), C.int(c.nw), unsafe.SliceData(c.sges), c.room, c.taken)
	return int(*c.taken), opError("ibv_post_send", e)
}
