package ports

// Region is a run of memory by reference. It is a HostRegion or a DeviceRegion; no other type implements it.
type Region interface {
	Len() uint64
	region()
}

// HostRegion is memory that this process may read and write.
type HostRegion struct {
	b    []byte
	file *File
}

// File is the object behind mapped memory, for transports and clients that map it too. Off is the region's start in it.
type File struct {
	FD  uintptr
	Off uint64
}

// HostRegionOf wraps b. Memory that is registered with a NIC is never Go heap.
func HostRegionOf(b []byte) HostRegion { return HostRegion{b: b[:len(b):len(b)]} }

// HostRegionOfFile also names the file that b maps.
func HostRegionOfFile(b []byte, f *File) HostRegion { return HostRegion{b: b[:len(b):len(b)], file: f} }

// Len is the region's length in bytes.
func (h HostRegion) Len() uint64 { return uint64(len(h.b)) }

// Bytes is the memory itself; it lives as long as its owner says.
func (h HostRegion) Bytes() []byte { return h.b }

// File returns the file behind the region, or nil.
func (h HostRegion) File() *File { return h.file }
func (HostRegion) region()       {}

// DevAddr is an address in an accelerator's memory. A struct, so that no conversion makes it a Go pointer.
type DevAddr struct{ v uint64 }

// DevAddrOf wraps a driver's address.
func DevAddrOf(v uint64) DevAddr { return DevAddr{v} }

// Raw is for adapters that pass the address to a driver: hip and rdma only, which the layers test holds.
func (a DevAddr) Raw() uint64 { return a.v }

// DeviceRegion is memory of accelerator Ordinal.
type DeviceRegion struct {
	ordinal int
	addr    DevAddr
	n       uint64
}

// DeviceRegionOf names n bytes at a on an accelerator.
func DeviceRegionOf(ordinal int, a DevAddr, n uint64) DeviceRegion {
	return DeviceRegion{ordinal, a, n}
}

// Len is the region's length in bytes.
func (d DeviceRegion) Len() uint64 { return d.n }

// Ordinal is the accelerator.
func (d DeviceRegion) Ordinal() int { return d.ordinal }

// Overlaps says that the two share memory.
func (d DeviceRegion) Overlaps(o DeviceRegion) bool {
	if d.ordinal != o.ordinal || d.n == 0 || o.n == 0 {
		return false
	}
	return d.addr.v-o.addr.v < o.n || o.addr.v-d.addr.v < d.n // of the two differences one wraps around, or both are 0
}

// Addr is where the region begins on it.
func (d DeviceRegion) Addr() DevAddr { return d.addr }
func (DeviceRegion) region()         {}
