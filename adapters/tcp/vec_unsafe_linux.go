package tcp

import (
	"io"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/spanpool/spanpool/crc32c"
)

// supported says whether there are vectors of memory to read and write here.
const supported = true

// maxVec is IOV_MAX: the most pieces of one system call.
const maxVec = 1024

// vec is a queue of pieces of memory that a socket is read into or written from. It is reset when it is done with: addresses
// that are not Go's any more must not be left where the collector finds them.
type vec struct {
	iov  []unix.Iovec
	head int
	left int // bytes
}

func (v *vec) reset() {
	clear(v.iov)
	v.iov, v.head, v.left = v.iov[:0], 0, 0
}

func (v *vec) add(b []byte) {
	if len(b) == 0 {
		return
	}
	i := unix.Iovec{Base: unsafe.SliceData(b)}
	i.SetLen(len(b))
	v.iov = append(v.iov, i)
	v.left += len(b)
}

// pieces is how many are left.
func (v *vec) pieces() int { return len(v.iov) - v.head }

// advance drops n bytes from the front. Precondition: n <= left.
func (v *vec) advance(n int) {
	v.left -= n
	for n > 0 {
		p := &v.iov[v.head]
		if n < int(p.Len) {
			p.Base = (*byte)(unsafe.Add(unsafe.Pointer(p.Base), n))
			p.SetLen(int(p.Len) - n)
			return
		}
		n -= int(p.Len)
		v.head++
	}
}

// copyIn fills the front from b and drops it. With a sum it goes on with that by what it stores. Precondition: len(b) <= left.
func (v *vec) copyIn(b []byte, sum *uint32) {
	for len(b) > 0 {
		p := &v.iov[v.head]
		n := min(int(p.Len), len(b))
		to := unsafe.Slice(p.Base, n)
		if sum == nil {
			copy(to, b)
		} else {
			*sum = crc32c.Copy(to, b[:n], nil, *sum)
		}
		b = b[n:]
		v.advance(n)
	}
}

// sumFront goes on with a sum by the first n bytes. Precondition: n <= left.
func (v *vec) sumFront(sum uint32, n int) uint32 {
	for i := v.head; n > 0; i++ {
		k := min(int(v.iov[i].Len), n)
		sum = crc32c.Update(sum, unsafe.Slice(v.iov[i].Base, k))
		n -= k
	}
	return sum
}

// readv reads once into the front, and drops what was filled. The end of the stream is io.EOF.
func (v *vec) readv(fd int) (int, error) {
	n, err := v.fill(fd)
	v.advance(n)
	return n, err
}

// fill is readv that leaves the front as it is: what was filled is to be dropped with advance.
func (v *vec) fill(fd int) (int, error) {
	n, err := v.call(unix.SYS_READV, fd)
	if err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, io.EOF
	}
	v.landed(n)
	return n, nil
}

// writev writes once from the front, and drops what was written.
func (v *vec) writev(fd int) (int, error) {
	v.leaving()
	n, err := v.call(unix.SYS_WRITEV, fd)
	if err != nil {
		return 0, err
	}
	v.advance(n)
	return n, nil
}

// call is x/sys's Readv and Writev without the vector that these allocate at each call.
func (v *vec) call(trap uintptr, fd int) (int, error) {
	p := v.iov[v.head:]
	if len(p) > maxVec {
		p = p[:maxVec]
	}
	n, _, errno := unix.Syscall(trap, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
