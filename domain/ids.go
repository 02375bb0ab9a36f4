package domain

import (
	"errors"
	"fmt"
	"time"
)

// Version is 128 random bits drawn by the writer of a put; the zero Version is none.
type Version struct{ Hi, Lo uint64 }

// IsZero reports whether v names no version.
func (v Version) IsZero() bool { return v == Version{} }

func (v Version) String() string { return fmt.Sprintf("%016x%016x", v.Hi, v.Lo) }

// Incarnation is drawn anew at each start of a node; zero is none.
type Incarnation uint64

// Generation names one use of a slot's pages. Counter is never reused within an incarnation; the zero Generation is none.
type Generation struct {
	Incarnation Incarnation
	Counter     uint64
}

// IsZero reports whether g names no generation.
func (g Generation) IsZero() bool { return g == Generation{} }

// Instant is a point on a clock that goes on while the machine sleeps, in nanoseconds. It has no meaning on another node.
type Instant int64

// Add returns the instant d later.
func (t Instant) Add(d time.Duration) Instant { return t + Instant(d) }

// Sub returns the time from u to t.
func (t Instant) Sub(u Instant) time.Duration { return time.Duration(t - u) }

// Space is a node's own small number for a namespace. The numbers of two nodes are unrelated.
type Space uint32

// PageRef names page Page of buffer Buffer of a medium.
type PageRef struct{ Buffer, Page uint32 }

// Limits of a call and of an object (rules.md section 2).
const (
	MaxKeyBytes   = 512
	MaxCallKeys   = 65_536
	MaxCallRanges = 1 << 20
	MaxPutRanges  = 4_096
	MaxObjectSize = 1 << 40
)

// Whole as the length of a range that starts at 0 stands for the whole object, whatever its size.
const Whole = ^uint64(0)

// ErrInvalid is the class of everything that a caller or a peer got wrong; errors that wrap it name value and limit.
var ErrInvalid = errors.New("invalid")

// LimitError says which value was past which limit.
type LimitError struct {
	What         string // "key bytes", "ranges of a call"
	Value, Limit uint64
}

func (e *LimitError) Error() string { return fmt.Sprintf("%s: %d, limit %d", e.What, e.Value, e.Limit) }

// Is makes every LimitError an ErrInvalid.
func (e *LimitError) Is(target error) bool { return target == ErrInvalid }

// CheckKey refuses an empty name and one past MaxKeyBytes.
func CheckKey(name string) error {
	if len(name) == 0 || len(name) > MaxKeyBytes {
		return &LimitError{What: "key bytes (1 or more)", Value: uint64(len(name)), Limit: MaxKeyBytes}
	}
	return nil
}
