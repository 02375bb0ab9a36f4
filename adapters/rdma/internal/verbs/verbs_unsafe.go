//go:build linux && cgo && rdma

package verbs

/*
#cgo LDFLAGS: -libverbs
#cgo noescape sp_poll
#cgo nocallback sp_poll
#cgo noescape sp_arm
#cgo nocallback sp_arm
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <infiniband/verbs.h>

static int sp_errno(void *p) { return p ? 0 : (errno ? errno : EIO); }

static int sp_devices(struct ibv_device ***list, int *n) { errno = 0; *list = ibv_get_device_list(n); return sp_errno(*list); }
static int sp_open(struct ibv_device *d, struct ibv_context **c) { errno = 0; *c = ibv_open_device(d); return sp_errno(*c); }
static int sp_query_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *a) { return ibv_query_port(c, port, a); }
static int sp_query_gid(struct ibv_context *c, uint8_t port, int index, struct ibv_gid_entry *e) {
	return ibv_query_gid_ex(c, port, index, e, 0);
}
static int sp_alloc_pd(struct ibv_context *c, struct ibv_pd **pd) { errno = 0; *pd = ibv_alloc_pd(c); return sp_errno(*pd); }
static int sp_reg_mr(struct ibv_pd *pd, uint64_t addr, uint64_t len, int access, struct ibv_mr **mr) {
	errno = 0; *mr = ibv_reg_mr(pd, (void *)(uintptr_t)addr, len, access); return sp_errno(*mr);
}
static int sp_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t off, uint64_t len, uint64_t iova, int fd, int access, struct ibv_mr **mr) {
	errno = 0; *mr = ibv_reg_dmabuf_mr(pd, off, len, iova, fd, access); return sp_errno(*mr);
}
static int sp_create_channel(struct ibv_context *c, struct ibv_comp_channel **ch) {
	errno = 0; *ch = ibv_create_comp_channel(c);
	if (!*ch) return sp_errno(NULL);
	int flags = fcntl((*ch)->fd, F_GETFL);
	if (flags < 0 || fcntl((*ch)->fd, F_SETFL, flags | O_NONBLOCK) < 0) { int e = errno; ibv_destroy_comp_channel(*ch); return e; }
	return 0;
}
static int sp_create_cq(struct ibv_context *c, int cqe, struct ibv_comp_channel *ch, struct ibv_cq **cq) {
	errno = 0; *cq = ibv_create_cq(c, cqe, NULL, ch, 0); return sp_errno(*cq);
}
static int sp_arm(struct ibv_cq *cq) { return ibv_req_notify_cq(cq, 0); }
static int sp_take_event(struct ibv_comp_channel *ch, struct ibv_cq *cq) {
	struct ibv_cq *of; void *ctx;
	if (ibv_get_cq_event(ch, &of, &ctx)) return errno ? errno : EIO;
	ibv_ack_cq_events(cq, 1);
	return 0;
}
static int sp_poll(struct ibv_cq *cq, int n, struct ibv_wc *wc) { return ibv_poll_cq(cq, n, wc); }
static int sp_create_qp(struct ibv_pd *pd, struct ibv_cq *scq, struct ibv_cq *rcq, uint32_t send, uint32_t recv, uint32_t sge, struct ibv_qp **qp) {
	struct ibv_qp_init_attr a;
	memset(&a, 0, sizeof a);
	a.send_cq = scq; a.recv_cq = rcq; a.qp_type = IBV_QPT_RC;
	a.cap.max_send_wr = send; a.cap.max_recv_wr = recv; a.cap.max_send_sge = sge; a.cap.max_recv_sge = 1;
	errno = 0; *qp = ibv_create_qp(pd, &a); return sp_errno(*qp);
}
static int sp_to_init(struct ibv_qp *qp, uint8_t port, int access) {
	struct ibv_qp_attr a;
	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_INIT; a.port_num = port; a.qp_access_flags = access;
	return ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}
static int sp_to_rtr(struct ibv_qp *qp, uint8_t port, uint8_t sgid, const void *dgid, uint16_t dlid, uint32_t qpn, uint32_t psn, int mtu, uint8_t reads) {
	struct ibv_qp_attr a;
	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_RTR; a.path_mtu = mtu; a.dest_qp_num = qpn; a.rq_psn = psn; a.max_dest_rd_atomic = reads; a.min_rnr_timer = 12;
	a.ah_attr.is_global = 1; a.ah_attr.port_num = port; a.ah_attr.dlid = dlid;
	memcpy(&a.ah_attr.grh.dgid, dgid, 16); a.ah_attr.grh.sgid_index = sgid; a.ah_attr.grh.hop_limit = 64;
	return ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}
static int sp_to_rts(struct ibv_qp *qp, uint32_t psn, uint8_t timeout, uint8_t retry, uint8_t rnr, uint8_t reads) {
	struct ibv_qp_attr a;
	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_RTS; a.sq_psn = psn; a.timeout = timeout; a.retry_cnt = retry; a.rnr_retry = rnr; a.max_rd_atomic = reads;
	return ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
}
static int sp_to_err(struct ibv_qp *qp) {
	struct ibv_qp_attr a;
	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_ERR;
	return ibv_modify_qp(qp, &a, IBV_QP_STATE);
}
static int sp_post_recv(struct ibv_qp *qp, uint64_t id, uint64_t addr, uint32_t len, uint32_t lkey) {
	struct ibv_sge s = { .addr = addr, .length = len, .lkey = lkey };
	struct ibv_recv_wr w = { .wr_id = id, .sg_list = &s, .num_sge = 1 }, *bad;
	return ibv_post_recv(qp, &w, &bad);
}
*/
import "C"

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"
)

// Access rights of memory and queue pairs.
const (
	LocalWrite  = C.IBV_ACCESS_LOCAL_WRITE
	RemoteRead  = C.IBV_ACCESS_REMOTE_READ
	RemoteWrite = C.IBV_ACCESS_REMOTE_WRITE
)

// opError says which call failed. errno is what it returned.
func opError(call string, errno C.int) error {
	if errno == 0 {
		return nil
	}
	if errno < 0 {
		errno = -errno // some providers return it so
	}
	return fmt.Errorf("%s: %w", call, syscall.Errno(errno))
}

// Devices lists the names of what is here. Without the kernel's support the error wraps errors.ErrUnsupported.
//
//	struct ibv_device **ibv_get_device_list(int *num_devices);
func Devices() ([]string, error) {
	var names []string
	err := eachDevice(func(d *C.struct_ibv_device) error {
		names = append(names, C.GoString(C.ibv_get_device_name(d)))
		return nil
	})
	return names, err
}

func eachDevice(emit func(*C.struct_ibv_device) error) error {
	var list **C.struct_ibv_device
	var n C.int
	if e := C.sp_devices(&list, &n); e != 0 {
		err := opError("ibv_get_device_list", e)
		if errors.Is(err, syscall.ENOSYS) {
			return fmt.Errorf("%w: %w: the kernel has no RDMA support loaded", err, errors.ErrUnsupported)
		}
		return err
	}
	defer C.ibv_free_device_list(list)
	for _, d := range unsafe.Slice(list, int(n)) {
		if err := emit(d); err != nil {
			return err
		}
	}
	return nil
}

// Context is an open device.
type Context struct{ c *C.struct_ibv_context }

// Open opens a device by its name; syscall.ENODEV where there is none of that name.
//
//	struct ibv_context *ibv_open_device(struct ibv_device *device);
func Open(name string) (*Context, error) {
	c := &Context{}
	err := eachDevice(func(d *C.struct_ibv_device) error {
		if c.c != nil || C.GoString(C.ibv_get_device_name(d)) != name {
			return nil
		}
		return opError("ibv_open_device", C.sp_open(d, &c.c))
	})
	if err == nil && c.c == nil {
		err = opError("ibv_open_device", C.ENODEV)
	}
	return c, err
}

// Close follows that of everything made with c.
//
//	int ibv_close_device(struct ibv_context *context);
func (c *Context) Close() error { return opError("ibv_close_device", C.ibv_close_device(c.c)) }

// DeviceAttr is what a device can do.
type DeviceAttr struct {
	Firmware                              string
	MaxMRBytes                            uint64
	MaxQP, MaxQPWR, MaxSGE, MaxCQ, MaxCQE int
	MaxMR                                 int
	MaxReadsAsTarget, MaxReadsAsInitiator int // outstanding, per queue pair
	Ports                                 int
}

// Device asks for the caps.
//
//	int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *device_attr);
func (c *Context) Device() (DeviceAttr, error) {
	var a C.struct_ibv_device_attr
	if e := C.ibv_query_device(c.c, &a); e != 0 {
		return DeviceAttr{}, opError("ibv_query_device", e)
	}
	return DeviceAttr{Firmware: C.GoString(&a.fw_ver[0]), MaxMRBytes: uint64(a.max_mr_size), MaxQP: int(a.max_qp), MaxQPWR: int(a.max_qp_wr),
		MaxSGE: int(a.max_sge), MaxCQ: int(a.max_cq), MaxCQE: int(a.max_cqe), MaxMR: int(a.max_mr),
		MaxReadsAsTarget: int(a.max_qp_rd_atom), MaxReadsAsInitiator: int(a.max_qp_init_rd_atom), Ports: int(a.phys_port_cnt)}, nil
}

// PortAttr is the state of a port.
type PortAttr struct {
	Active    bool
	State     string
	Ethernet  bool
	ActiveMTU int // as the enumeration: 1 is 256 bytes, 5 is 4096
	LID       uint16
	GIDs      int
	MaxMsg    uint32
}

// Port asks for a port's state; ports count from 1.
//
//	int ibv_query_port(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *port_attr);
func (c *Context) Port(n int) (PortAttr, error) {
	var a C.struct_ibv_port_attr
	if e := C.sp_query_port(c.c, C.uint8_t(n), &a); e != 0 {
		return PortAttr{}, opError("ibv_query_port", e)
	}
	return PortAttr{Active: a.state == C.IBV_PORT_ACTIVE, State: C.GoString(C.ibv_port_state_str(a.state)), Ethernet: a.link_layer == C.IBV_LINK_LAYER_ETHERNET,
		ActiveMTU: int(a.active_mtu), LID: uint16(a.lid), GIDs: int(a.gid_tbl_len), MaxMsg: uint32(a.max_msg_sz)}, nil
}

// GIDType is what a GID is good for.
type GIDType uint32

// The types.
const (
	GIDInfiniBand GIDType = C.IBV_GID_TYPE_IB
	GIDRoCEv1     GIDType = C.IBV_GID_TYPE_ROCE_V1
	GIDRoCEv2     GIDType = C.IBV_GID_TYPE_ROCE_V2
)

// GID reads an entry of a port's table; ENODATA where it is empty.
//
//	int ibv_query_gid_ex(struct ibv_context *context, uint32_t port_num, uint32_t gid_index, struct ibv_gid_entry *entry, uint32_t flags);
func (c *Context) GID(port, index int) (gid [16]byte, t GIDType, err error) {
	var e C.struct_ibv_gid_entry
	if rc := C.sp_query_gid(c.c, C.uint8_t(port), C.int(index), &e); rc != 0 {
		return gid, 0, opError("ibv_query_gid_ex", rc)
	}
	return e.gid, GIDType(e.gid_type), nil
}

// PD is a protection domain.
type PD struct{ p *C.struct_ibv_pd }

// AllocPD makes a protection domain.
//
//	struct ibv_pd *ibv_alloc_pd(struct ibv_context *context);
func (c *Context) AllocPD() (*PD, error) {
	pd := &PD{}
	return pd, opError("ibv_alloc_pd", C.sp_alloc_pd(c.c, &pd.p))
}

// Close follows that of everything made in it.
//
//	int ibv_dealloc_pd(struct ibv_pd *pd);
func (p *PD) Close() error { return opError("ibv_dealloc_pd", C.ibv_dealloc_pd(p.p)) }

// MR is registered memory.
type MR struct {
	m          *C.struct_ibv_mr
	LKey, RKey uint32
}

func newMR(m *C.struct_ibv_mr) *MR { return &MR{m, uint32(m.lkey), uint32(m.rkey)} }

// Register registers memory of this process by its address. It must stay mapped until Close.
//
//	struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access);
func (p *PD) Register(addr, n uint64, access int) (*MR, error) {
	var m *C.struct_ibv_mr
	if e := C.sp_reg_mr(p.p, C.uint64_t(addr), C.uint64_t(n), C.int(access), &m); e != 0 {
		return nil, opError("ibv_reg_mr", e)
	}
	return newMR(m), nil
}

// RegisterDMABuf registers memory of a device by a dma-buf; peers and ops name it by iova.
//
//	struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access);
func (p *PD) RegisterDMABuf(fd int, off, n, iova uint64, access int) (*MR, error) {
	var m *C.struct_ibv_mr
	if e := C.sp_reg_dmabuf_mr(p.p, C.uint64_t(off), C.uint64_t(n), C.uint64_t(iova), C.int(fd), C.int(access), &m); e != 0 {
		return nil, opError("ibv_reg_dmabuf_mr", e)
	}
	return newMR(m), nil
}

// Close returns when the device touches the memory no more.
//
//	int ibv_dereg_mr(struct ibv_mr *mr);
func (m *MR) Close() error { return opError("ibv_dereg_mr", C.ibv_dereg_mr(m.m)) }

// Channel tells of completions. Its descriptor does not block.
type Channel struct{ c *C.struct_ibv_comp_channel }

// CreateChannel makes a completion channel.
//
//	struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context);
func (c *Context) CreateChannel() (*Channel, error) {
	ch := &Channel{}
	return ch, opError("ibv_create_comp_channel", C.sp_create_channel(c.c, &ch.c))
}

// FD is readable when there is an event. Close closes it.
func (c *Channel) FD() int { return int(c.c.fd) }

// Close follows that of its completion queue.
//
//	int ibv_destroy_comp_channel(struct ibv_comp_channel *channel);
func (c *Channel) Close() error {
	return opError("ibv_destroy_comp_channel", C.ibv_destroy_comp_channel(c.c))
}

// CQ is a completion queue with a channel of its own.
type CQ struct {
	q  *C.struct_ibv_cq
	ch *C.struct_ibv_comp_channel
	wc *C.struct_ibv_wc
	n  int
}

// CreateCQ makes a queue of that many entries, of which Poll takes at most batch at once.
//
//	struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel, int comp_vector);
func (c *Context) CreateCQ(entries, batch int, ch *Channel) (*CQ, error) {
	q := &CQ{ch: ch.c, n: batch}
	if e := C.sp_create_cq(c.c, C.int(entries), ch.c, &q.q); e != 0 {
		return nil, opError("ibv_create_cq", e)
	}
	q.wc = (*C.struct_ibv_wc)(C.calloc(C.size_t(batch), C.sizeof_struct_ibv_wc))
	return q, nil
}

// Close follows that of the queue pairs that use it.
//
//	int ibv_destroy_cq(struct ibv_cq *cq);
func (q *CQ) Close() error {
	C.free(unsafe.Pointer(q.wc))
	return opError("ibv_destroy_cq", C.ibv_destroy_cq(q.q))
}

// Arm asks for an event at the next completion.
//
//	int ibv_req_notify_cq(struct ibv_cq *cq, int solicited_only);
func (q *CQ) Arm() error { return opError("ibv_req_notify_cq", C.sp_arm(q.q)) }

// TakeEvent takes an event and reports whether there was one.
//
//	int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context);
func (q *CQ) TakeEvent() bool { return C.sp_take_event(q.ch, q.q) == 0 }

// WC is a completion. Only ID and Status are to be relied on where Status is not 0.
type WC struct {
	ID     uint64
	Status uint32
	Vendor uint32
	Recv   bool
	Len    uint32
}

// Poll fills dst[:n]; a dst longer than the batch of CreateCQ is filled so far at most.
//
//	int ibv_poll_cq(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc);
func (q *CQ) Poll(dst []WC) (int, error) {
	n := int(C.sp_poll(q.q, C.int(min(len(dst), q.n)), q.wc))
	if n < 0 {
		return 0, fmt.Errorf("ibv_poll_cq: %w", syscall.EIO)
	}
	for i, w := range unsafe.Slice(q.wc, n) {
		dst[i] = WC{ID: uint64(w.wr_id), Status: uint32(w.status), Vendor: uint32(w.vendor_err), Recv: w.opcode&C.IBV_WC_RECV != 0, Len: uint32(w.byte_len)}
	}
	return n, nil
}

// QP is a reliable connected queue pair.
type QP struct {
	q   *C.struct_ibv_qp
	Num uint32
}

// CreateQP makes a queue pair for that many send and receive requests, and that many scatter entries a send.
//
//	struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *qp_init_attr);
func (p *PD) CreateQP(send, recv *CQ, sends, recvs, sges int) (*QP, error) {
	var q *C.struct_ibv_qp
	if e := C.sp_create_qp(p.p, send.q, recv.q, C.uint32_t(sends), C.uint32_t(recvs), C.uint32_t(sges), &q); e != 0 {
		return nil, opError("ibv_create_qp", e)
	}
	return &QP{q, uint32(q.qp_num)}, nil
}

// Close returns when the device works on nothing of it, and answers nothing on it, any more.
//
//	int ibv_destroy_qp(struct ibv_qp *qp);
func (q *QP) Close() error { return opError("ibv_destroy_qp", C.ibv_destroy_qp(q.q)) }

// ToInit is the first step; access is what the peer may do by this queue pair.
//
//	int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask);
func (q *QP) ToInit(port, access int) error {
	return opError("ibv_modify_qp to INIT", C.sp_to_init(q.q, C.uint8_t(port), C.int(access)))
}

// Path is the way to a peer's queue pair.
type Path struct {
	Port, SGID, MTU int
	DGID            [16]byte
	DLID            uint16
	QPN, PSN        uint32 // the peer's
	OurPSN          uint32
	ReadsIn         int // outstanding reads of the peer's
	ReadsOut        int // and of ours
	Timeout         int // 4.096 us x 2^Timeout
	Retry, RNRRetry int
}

// Connect goes on to the state in which it sends.
//
//	int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask);
func (q *QP) Connect(p *Path) error {
	gid := C.CBytes(p.DGID[:])
	defer C.free(gid)
	e := C.sp_to_rtr(q.q, C.uint8_t(p.Port), C.uint8_t(p.SGID), gid, C.uint16_t(p.DLID), C.uint32_t(p.QPN), C.uint32_t(p.PSN), C.int(p.MTU), C.uint8_t(p.ReadsIn))
	if e != 0 {
		return opError("ibv_modify_qp to RTR", e)
	}
	return opError("ibv_modify_qp to RTS",
		C.sp_to_rts(q.q, C.uint32_t(p.OurPSN), C.uint8_t(p.Timeout), C.uint8_t(p.Retry), C.uint8_t(p.RNRRetry), C.uint8_t(p.ReadsOut)))
}

// Fail moves it to the state of error: what is posted is flushed, and the peer is answered nothing.
//
//	int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask);
func (q *QP) Fail() error { return opError("ibv_modify_qp to ERR", C.sp_to_err(q.q)) }

// PostRecv gives memory for one message.
//
//	int ibv_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);
func (q *QP) PostRecv(id, addr uint64, n, lkey uint32) error {
	return opError("ibv_post_recv", C.sp_post_recv(q.q, C.uint64_t(id), C.uint64_t(addr), C.uint32_t(n), C.uint32_t(lkey)))
}
