//go:build !(gpu && linux && cgo)

package hiprt

import (
	"errors"
	"fmt"
	"time"
)

// Supported says whether this build can open a library.
const Supported = false

// Lib cannot be had in this build.
type Lib struct {
	Path    string
	Vendor  Vendor
	Version int
}

var errBuild = fmt.Errorf("%w: this build has no GPU support (it takes cgo, Linux and the build tag gpu)", errors.ErrUnsupported)

// Open refuses; so does every other call.
func Open(string, Vendor) (*Lib, error) { return nil, errBuild }

func (*Lib) HasBatch() bool                               { return false }
func (*Lib) HasDMABuf() bool                              { return false }
func (*Lib) DeviceCount() (int, error)                    { return 0, errBuild }
func (*Lib) SetDevice(int) error                          { return errBuild }
func (*Lib) PCIBusID(int) (string, error)                 { return "", errBuild }
func (*Lib) Malloc(uint64) (uint64, error)                { return 0, errBuild }
func (*Lib) Free(uint64) error                            { return errBuild }
func (*Lib) MemInfo() (free, total uint64, err error)     { return 0, 0, errBuild }
func (*Lib) HostRegister([]byte) error                    { return errBuild }
func (*Lib) HostUnregister([]byte) error                  { return errBuild }
func (*Lib) StreamCreate(bool) (Stream, error)            { return 0, errBuild }
func (*Lib) StreamDestroy(Stream) error                   { return errBuild }
func (*Lib) EventCreate() (Event, error)                  { return 0, errBuild }
func (*Lib) EventDestroy(Event) error                     { return errBuild }
func (*Lib) Submit(Stream, Event, *Columns) (bool, error) { return false, errBuild }
func (*Lib) Wait(Event, time.Duration) (bool, error)      { return false, errBuild }
func (*Lib) Pointer(uint64) (MemoryType, int, error)      { return Unregistered, 0, errBuild }
func (*Lib) IPCGet(uint64) (IPCHandle, error)             { return IPCHandle{}, errBuild }
func (*Lib) IPCOpen(*IPCHandle) (uint64, error)           { return 0, errBuild }
func (*Lib) IPCClose(uint64) error                        { return errBuild }
func (*Lib) Extent(uint64) (base, n uint64, err error)    { return 0, 0, errBuild }
func (*Lib) DMABuf(_, _ uint64) (int, error)              { return -1, errBuild }

// HostAddr is 0 here.
func HostAddr([]byte) uint64 { return 0 }
