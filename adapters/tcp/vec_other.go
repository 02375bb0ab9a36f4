//go:build !linux

package tcp

import "errors"

// supported says whether there are vectors of memory to read and write here.
const supported = false

const maxVec = 1024

// vec stands for what this system does not have; Listen refuses, so nothing calls it.
type vec struct{ left int }

func (v *vec) reset()                      {}
func (v *vec) add([]byte)                  {}
func (v *vec) pieces() int                 { return 0 }
func (v *vec) advance(int)                 {}
func (v *vec) copyIn([]byte, *uint32)      {}
func (v *vec) sumFront(uint32, int) uint32 { return 0 }
func (v *vec) fill(int) (int, error)       { return 0, errors.ErrUnsupported }
func (v *vec) readv(int) (int, error)      { return 0, errors.ErrUnsupported }
func (v *vec) writev(int) (int, error)     { return 0, errors.ErrUnsupported }
