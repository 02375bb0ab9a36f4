//go:build gpu && linux && cgo

package hiprt

// #cgo LDFLAGS: -ldl
// #cgo noescape hiprt_submit
// #cgo nocallback hiprt_submit
// #cgo noescape hiprt_wait
// #cgo nocallback hiprt_wait
// #include <stdlib.h>
// #include "hiprt.h"
import "C"

import (
	"errors"
	"fmt"
	"time"
	"unsafe"
)

// Supported says whether this build can open a library.
const Supported = true

// Lib is an opened library. It is not closed again: vendors' runtimes have threads of their own.
type Lib struct {
	Path    string
	Vendor  Vendor
	Version int
	h       *C.struct_hiprt
}

// Open loads a library and looks up every symbol. A required one that is missing is a *MissingError.
//
//	void *dlopen(const char *, int); void *dlsym(void *, const char *)
func Open(path string, v Vendor) (*Lib, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	C.dlerror() // of whoever came before
	lib := C.hiprt_dlopen(name)
	if lib == nil {
		return nil, fmt.Errorf("open %s: %s", path, C.GoString(C.dlerror()))
	}
	h := (*C.struct_hiprt)(C.calloc(1, C.sizeof_struct_hiprt))
	var missing []string
	for i, s := range symbols {
		sym := C.CString(string(v) + s)
		h.sym[i] = C.dlsym(lib, sym)
		C.free(unsafe.Pointer(sym))
		if h.sym[i] == nil && i < len(symbols)-optional {
			missing = append(missing, string(v)+s)
		}
	}
	if missing != nil {
		C.free(unsafe.Pointer(h))
		return nil, &MissingError{path, missing}
	}
	l := &Lib{Path: path, Vendor: v, h: h}
	var n C.int
	if err := l.say("RuntimeGetVersion", C.hiprt_version(h, &n)); err != nil {
		return nil, err
	}
	l.Version = int(n)
	if v == CUDA && l.Version >= 13000 {
		h.batch_without_index = 1
	}
	return l, nil
}

// say makes an error of a code, and takes it out of the thread.
func (l *Lib) say(call string, e C.int) error {
	if e == 0 {
		return nil
	}
	C.hiprt_last_error(l.h)
	return &CallError{string(l.Vendor) + call, Code(e), C.GoString(C.hiprt_text(l.h, e))}
}

func (l *Lib) has(i int) bool { return l.h.sym[i] != nil }

// HasBatch says whether many copies are one call.
func (l *Lib) HasBatch() bool { return l.has(C.MEMCPY_BATCH_ASYNC) }

// HasDMABuf says whether memory can be exported as a dma-buf.
func (l *Lib) HasDMABuf() bool { return l.has(C.MEM_GET_HANDLE_FOR_ADDRESS_RANGE) }

// DeviceCount is at least 1, or an error.
//
//	hipError_t hipGetDeviceCount(int *count)
func (l *Lib) DeviceCount() (int, error) {
	var n C.int
	err := l.say("GetDeviceCount", C.hiprt_device_count(l.h, &n))
	if err == nil && n <= 0 {
		err = &CallError{string(l.Vendor) + "GetDeviceCount", NoDevice, "no device"}
	}
	return int(n), err
}

// SetDevice sets the device of this thread.
//
//	hipError_t hipSetDevice(int deviceId)
func (l *Lib) SetDevice(d int) error { return l.say("SetDevice", C.hiprt_set_device(l.h, C.int(d))) }

// PCIBusID is where a device is plugged in.
//
//	hipError_t hipDeviceGetPCIBusId(char *pciBusId, int len, int device)
func (l *Lib) PCIBusID(d int) (string, error) {
	var b [64]C.char
	err := l.say("DeviceGetPCIBusId", C.hiprt_pci(l.h, C.int(d), &b[0], C.int(len(b))))
	return C.GoString(&b[0]), err
}

// Malloc takes memory of this thread's device.
//
//	hipError_t hipMalloc(void **ptr, size_t size)
func (l *Lib) Malloc(n uint64) (uint64, error) {
	var at C.uint64_t
	err := l.say("Malloc", C.hiprt_malloc(l.h, C.uint64_t(n), &at))
	return uint64(at), err
}

// Free gives it back.
//
//	hipError_t hipFree(void *ptr)
func (l *Lib) Free(at uint64) error { return l.say("Free", C.hiprt_free(l.h, C.uint64_t(at))) }

// MemInfo is of this thread's device.
//
//	hipError_t hipMemGetInfo(size_t *free, size_t *total)
func (l *Lib) MemInfo() (free, total uint64, err error) {
	var f, t C.uint64_t
	err = l.say("MemGetInfo", C.hiprt_mem_info(l.h, &f, &t))
	return uint64(f), uint64(t), err
}

// HostRegister pins memory that is not Go's.
//
//	hipError_t hipHostRegister(void *hostPtr, size_t sizeBytes, unsigned int flags)
func (l *Lib) HostRegister(b []byte) error {
	return l.say("HostRegister", C.hiprt_host_register(l.h, unsafe.Pointer(unsafe.SliceData(b)), C.uint64_t(len(b))))
}

// HostUnregister lets go of it.
//
//	hipError_t hipHostUnregister(void *hostPtr)
func (l *Lib) HostUnregister(b []byte) error {
	return l.say("HostUnregister", C.hiprt_host_unregister(l.h, unsafe.Pointer(unsafe.SliceData(b))))
}

// HostAddr is where memory that is not Go's lies, for copies.
func HostAddr(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// StreamCreate makes a stream of the highest or the lowest priority.
//
//	hipError_t hipStreamCreateWithPriority(hipStream_t *stream, unsigned int flags, int priority)
func (l *Lib) StreamCreate(high bool) (Stream, error) {
	var s C.uint64_t
	h := C.int(0)
	if high {
		h = 1
	}
	err := l.say("StreamCreateWithPriority", C.hiprt_stream_create(l.h, h, &s))
	return Stream(s), err
}

// StreamDestroy ends a stream.
//
//	hipError_t hipStreamDestroy(hipStream_t stream)
func (l *Lib) StreamDestroy(s Stream) error {
	return l.say("StreamDestroy", C.hiprt_stream_destroy(l.h, C.uint64_t(s)))
}

// EventCreate makes an event without a time.
//
//	hipError_t hipEventCreateWithFlags(hipEvent_t *event, unsigned flags)
func (l *Lib) EventCreate() (Event, error) {
	var e C.uint64_t
	err := l.say("EventCreateWithFlags", C.hiprt_event_create(l.h, &e))
	return Event(e), err
}

// EventDestroy ends an event.
//
//	hipError_t hipEventDestroy(hipEvent_t event)
func (l *Lib) EventDestroy(e Event) error {
	return l.say("EventDestroy", C.hiprt_event_destroy(l.h, C.uint64_t(e)))
}

// Submit queues copies, by one call of the library where it can take many, and records e behind them. On an error, recorded says
// whether e tells when what had been queued is over.
//
//	hipError_t hipMemcpyAsync(void *dst, const void *src, size_t size, hipMemcpyKind kind, hipStream_t stream)
//	hipError_t hipMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height, hipMemcpyKind kind, hipStream_t stream)
//	hipError_t hipMemcpyBatchAsync(void **dsts, void **srcs, size_t *sizes, size_t count, hipMemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs, size_t *failIdx, hipStream_t stream)
//	hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream)
func (l *Lib) Submit(s Stream, e Event, c *Columns) (recorded bool, err error) {
	column := func(v []uint64) *C.uint64_t { return (*C.uint64_t)(unsafe.SliceData(v)) }
	var rec C.int
	code := C.hiprt_submit(l.h, column(c.Dst), column(c.Src), column(c.Len), (*C.uint64_t)(unsafe.Pointer(unsafe.SliceData(c.Kind))), C.size_t(len(c.Dst)),
		(*C.struct_hiprt_rect)(unsafe.Pointer(unsafe.SliceData(c.Rects))), C.size_t(len(c.Rects)), C.uint64_t(s), C.uint64_t(e), &rec)
	return rec != 0, l.say("MemcpyAsync", code)
}

// Wait asks for at most budget whether an event has come. An error is what befell the copies before it; they are over.
//
//	hipError_t hipEventQuery(hipEvent_t event)
func (l *Lib) Wait(e Event, budget time.Duration) (over bool, err error) {
	code := C.hiprt_wait(l.h, C.uint64_t(e), C.int64_t(budget))
	if Code(code) == NotReady {
		return false, nil
	}
	return true, l.say("EventQuery", code)
}

// Pointer says what memory an address is of.
//
//	hipError_t hipPointerGetAttributes(hipPointerAttribute_t *attributes, const void *ptr)
func (l *Lib) Pointer(at uint64) (MemoryType, int, error) {
	var typ, device C.int
	if err := l.say("PointerGetAttributes", C.hiprt_pointer(l.h, C.uint64_t(at), &typ, &device)); err != nil {
		return Unregistered, 0, err
	}
	return memoryType(l.Vendor, l.Version, int(typ)), int(device), nil
}

// IPCGet names device memory to other processes.
//
//	hipError_t hipIpcGetMemHandle(hipIpcMemHandle_t *handle, void *devPtr)
func (l *Lib) IPCGet(at uint64) (h IPCHandle, err error) {
	err = l.say("IpcGetMemHandle", C.hiprt_ipc_get(l.h, C.uint64_t(at), (*C.struct_hiprt_ipc)(unsafe.Pointer(&h))))
	return h, err
}

// IPCOpen maps another process's memory.
//
//	hipError_t hipIpcOpenMemHandle(void **devPtr, hipIpcMemHandle_t handle, unsigned int flags)
func (l *Lib) IPCOpen(h *IPCHandle) (uint64, error) {
	var at C.uint64_t
	err := l.say("IpcOpenMemHandle", C.hiprt_ipc_open(l.h, (*C.struct_hiprt_ipc)(unsafe.Pointer(h)), &at))
	return uint64(at), err
}

// IPCClose unmaps it.
//
//	hipError_t hipIpcCloseMemHandle(void *devPtr)
func (l *Lib) IPCClose(at uint64) error {
	return l.say("IpcCloseMemHandle", C.hiprt_ipc_close(l.h, C.uint64_t(at)))
}

// Extent is the allocation that an address lies in; errors.ErrUnsupported where the runtime cannot say (CUDA's).
//
//	hipError_t hipMemGetAddressRange(hipDeviceptr_t *pbase, size_t *psize, hipDeviceptr_t dptr)
func (l *Lib) Extent(at uint64) (base, n uint64, err error) {
	if !l.has(C.MEM_GET_ADDRESS_RANGE) {
		return 0, 0, fmt.Errorf("%sMemGetAddressRange: %w by %s", l.Vendor, errors.ErrUnsupported, l.Path)
	}
	var b, size C.uint64_t
	err = l.say("MemGetAddressRange", C.hiprt_extent(l.h, C.uint64_t(at), &b, &size))
	return uint64(b), uint64(size), err
}

// DMABuf exports device memory as a file that a NIC's driver maps. The caller closes it.
//
//	hipError_t hipMemGetHandleForAddressRange(void *handle, hipDeviceptr_t dptr, size_t size, hipMemRangeHandleType handleType, unsigned long long flags)
func (l *Lib) DMABuf(at, n uint64) (fd int, err error) {
	if !l.HasDMABuf() {
		return -1, fmt.Errorf("%sMemGetHandleForAddressRange: %w by %s", l.Vendor, errors.ErrUnsupported, l.Path)
	}
	f := C.int(-1)
	err = l.say("MemGetHandleForAddressRange", C.hiprt_dmabuf(l.h, C.uint64_t(at), C.uint64_t(n), &f))
	return int(f), err
}
