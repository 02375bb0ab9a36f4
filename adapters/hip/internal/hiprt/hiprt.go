// Package hiprt is the vendor runtime of a GPU, opened at run time: libamdhip64 (HIP) or libcudart (CUDA), whose calls correspond. It
// has their words and no policy: which thread calls, how long to wait and what to do about an error is the caller's affair.
//
// The device that a thread has set and the last error belong to the thread: a caller locks it.
package hiprt

import (
	"fmt"
	"strings"
)

// Vendor is whose runtime it is, and the prefix of its symbols.
type Vendor string

// The vendors.
const (
	HIP  Vendor = "hip"
	CUDA Vendor = "cuda"
)

// Libraries are the names under which a vendor's runtime is looked for, newest first.
func (v Vendor) Libraries() []string {
	if v == CUDA {
		return []string{"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"}
	}
	return []string{"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"}
}

// symbols are the calls in the order of the table; the last optional ones may be missing.
var symbols = [...]string{"GetDeviceCount", "SetDevice", "Malloc", "Free", "MemGetInfo", "MemcpyAsync", "Memcpy2DAsync", "StreamCreateWithPriority",
	"StreamDestroy", "DeviceGetStreamPriorityRange", "EventCreateWithFlags", "EventRecord", "EventQuery", "EventDestroy", "HostRegister", "HostUnregister",
	"PointerGetAttributes", "IpcGetMemHandle", "IpcOpenMemHandle", "IpcCloseMemHandle", "GetErrorString", "GetLastError", "RuntimeGetVersion",
	"DeviceGetPCIBusId", "MemcpyBatchAsync", "MemGetHandleForAddressRange", "MemGetAddressRange"}

const optional = 3

// MissingError names the symbols that a library has not.
type MissingError struct {
	Library string
	Symbols []string
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("%s has no %s", e.Library, strings.Join(e.Symbols, ", "))
}

// Code is a vendor's error code. The ones that are named here have the same number in both.
type Code int

// The codes that decide something.
const (
	InvalidValue  Code = 1
	OutOfMemory   Code = 2
	NoDevice      Code = 100
	InvalidDevice Code = 101
	NotReady      Code = 600
)

// CallError is a call that failed.
type CallError struct {
	Call string // with the vendor's prefix
	Code Code
	Text string // the library's own
}

func (e *CallError) Error() string { return fmt.Sprintf("%s: error %d: %s", e.Call, e.Code, e.Text) }

// Is reports whether target is the same code.
func (c Code) Is(target error) bool { return target == error(c) }

func (c Code) Error() string { return fmt.Sprintf("error %d", int(c)) }

// Unwrap returns the code.
func (e *CallError) Unwrap() error { return e.Code }

// Kind is the direction of a copy.
type Kind uint64

// The kinds, by the vendors' numbers. Default finds out itself, and goes between devices too.
const (
	HostToDevice Kind = iota + 1
	DeviceToHost
	DeviceToDevice
	Default
)

// Rect copies Height rows of Width bytes. Its layout is that of struct hiprt_rect.
type Rect struct {
	Dst, Src, Width, Height, DPitch, SPitch uint64
	Kind                                    Kind
}

// Columns are the copies of one submission. They hold addresses as numbers, no pointers.
type Columns struct {
	Dst, Src, Len []uint64
	Kind          []Kind
	Rects         []Rect
}

// Reset empties them and keeps their room.
func (c *Columns) Reset() {
	c.Dst, c.Src, c.Len, c.Kind, c.Rects = c.Dst[:0], c.Src[:0], c.Len[:0], c.Kind[:0], c.Rects[:0]
}

// Stream and Event are the vendor's handles.
type (
	Stream uint64
	Event  uint64
)

// IPCHandle names device memory to other processes of the host.
type IPCHandle [64]byte

// MemoryType is where a pointer points, in the same words for every version.
type MemoryType int

// The types.
const (
	Unregistered MemoryType = iota
	Host
	Device
	Managed
	OtherMemory
)

// memoryType translates what a runtime of that vendor and version says: HIP began at host until version 5.
func memoryType(v Vendor, version, raw int) MemoryType {
	if v == HIP && version/10_000_000 <= 5 {
		switch raw {
		case 0:
			return Host
		case 1:
			return Device
		case 4:
			return Managed
		}
		return OtherMemory
	}
	if raw < int(Unregistered) || raw > int(Managed) {
		return OtherMemory
	}
	return MemoryType(raw)
}
