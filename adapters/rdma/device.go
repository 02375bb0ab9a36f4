//go:build linux && cgo && rdma

package rdma

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spanpool/spanpool/adapters/rdma/internal/verbs"
)

// Devices tells of every device, its ports and their GIDs. The error wraps errors.ErrUnsupported where the kernel has no support.
func Devices() ([]DeviceInfo, error) {
	names, err := verbs.Devices()
	if err != nil {
		return nil, err
	}
	var out []DeviceInfo
	for _, n := range names {
		d := DeviceInfo{Name: n}
		c, err := verbs.Open(n)
		if err == nil {
			err = d.read(c)
			err = errors.Join(err, c.Close())
		}
		d.Err = err
		out = append(out, d)
	}
	return out, nil
}

func (d *DeviceInfo) read(c *verbs.Context) error {
	a, err := c.Device()
	if err != nil {
		return err
	}
	d.Firmware = a.Firmware
	for n := 1; n <= a.Ports; n++ {
		p, err := c.Port(n)
		if err != nil {
			return err
		}
		d.Caps = capsOf(a, p)
		info := PortInfo{Number: n, State: p.State, Active: p.Active, Ethernet: p.Ethernet, MTU: mtuBytes(p.ActiveMTU)}
		used := gidsOf(c, n, p, "")
		for _, g := range allGIDs(c, n, p) {
			_, isUsed := slices.BinarySearchFunc(used, g.index, func(u gid, i int) int { return u.index - i })
			info.GIDs = append(info.GIDs, GIDInfo{Index: g.index, GID: gidText(g.raw), Type: gidTypeText(g.kind), Used: isUsed})
		}
		d.Ports = append(d.Ports, info)
	}
	return nil
}

func capsOf(a verbs.DeviceAttr, p verbs.PortAttr) Caps {
	return Caps{MaxMRBytes: a.MaxMRBytes, MaxMsg: uint64(p.MaxMsg), MaxQP: a.MaxQP, MaxQPWR: a.MaxQPWR, MaxSGE: a.MaxSGE, MaxCQE: a.MaxCQE, MaxMR: a.MaxMR,
		MaxReadsAsTarget: a.MaxReadsAsTarget, MaxReadsAsInitiator: a.MaxReadsAsInitiator}
}

func mtuBytes(m int) int { return 128 << m }

// gid is an entry of a port's table.
type gid struct {
	index int
	raw   [16]byte
	kind  verbs.GIDType
}

func allGIDs(c *verbs.Context, port int, p verbs.PortAttr) (out []gid) {
	for i := range p.GIDs {
		raw, kind, err := c.GID(port, i)
		if err == nil && raw != [16]byte{} {
			out = append(out, gid{i, raw, kind})
		}
	}
	return out
}

// gidsOf are those that peers are told, by index: of the right type and family. IPv4 before IPv6 is the owner's choice.
func gidsOf(c *verbs.Context, port int, p verbs.PortAttr, want string) (out []gid) {
	index, err := strconv.Atoi(want)
	for _, g := range allGIDs(c, port, p) {
		ok := p.Ethernet == (g.kind == verbs.GIDRoCEv2)
		switch v4 := netip.AddrFrom16(g.raw).Is4In6(); {
		case err == nil:
			ok = g.index == index
		case want == "ipv4":
			ok = ok && v4
		case want == "ipv6":
			ok = ok && !v4
		}
		if ok {
			out = append(out, g)
		}
	}
	return out[:min(len(out), maxGIDs)]
}

func gidText(raw [16]byte) string { return netip.AddrFrom16(raw).Unmap().String() }

func gidTypeText(t verbs.GIDType) string {
	return map[verbs.GIDType]string{verbs.GIDInfiniBand: "IB", verbs.GIDRoCEv1: "RoCE v1", verbs.GIDRoCEv2: "RoCE v2"}[t]
}

// nearest picks the pair of GIDs of one family that have the longest prefix in common; of equals the first, IPv4 before IPv6.
func nearest(theirs [][16]byte, ours []gid) (i, j int, ok bool) {
	best := -1
	for a, t := range theirs {
		for b, o := range ours {
			v4 := netip.AddrFrom16(t).Is4In6()
			if v4 != netip.AddrFrom16(o.raw).Is4In6() {
				continue
			}
			n := commonBits(t, o.raw)
			if v4 {
				n += 32 // 96 bits are every IPv4 address's: a neighbour by IPv6 alone must have as much
			}
			if n > best {
				best, i, j, ok = n, a, b, true
			}
		}
	}
	return i, j, ok
}

func commonBits(a, b [16]byte) int {
	n := 0
	for i := range a {
		for bit := 7; bit >= 0; bit-- {
			if (a[i]^b[i])>>bit&1 != 0 {
				return n
			}
			n++
		}
	}
	return n
}

// openDevice opens what Config.Device names, or the first device with a port that is up.
func openDevice(name string) (c *verbs.Context, device string, port int, err error) {
	names, err := verbs.Devices()
	if err != nil {
		return nil, "", 0, err
	}
	if len(names) == 0 {
		return nil, "", 0, fmt.Errorf("no RDMA device is here: %w", errors.ErrUnsupported)
	}
	wanted, portText, one := strings.Cut(name, "/")
	if name != "" && !slices.Contains(names, wanted) {
		return nil, "", 0, fmt.Errorf("no device %q; there are %s: %w", wanted, strings.Join(names, ", "), syscall.ENODEV)
	}
	var errs []error
	for _, n := range names {
		if wanted != "" && n != wanted {
			continue
		}
		c, err := verbs.Open(n)
		if err != nil {
			errs = append(errs, fmt.Errorf("device %s: %w", n, err))
			continue
		}
		if port, err = pickPort(c, portText, one); err == nil {
			return c, n, port, nil
		}
		errs = append(errs, fmt.Errorf("device %s: %w", n, err), c.Close())
	}
	return nil, "", 0, errors.Join(errs...)
}

// pickPort is the one that is named, or the first that is up.
func pickPort(c *verbs.Context, text string, named bool) (int, error) {
	a, err := c.Device()
	if err != nil {
		return 0, err
	}
	if named {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > a.Ports {
			return 0, fmt.Errorf("no port %q; there are 1 to %d: %w", text, a.Ports, syscall.ENODEV)
		}
		return n, nil
	}
	var states []string
	for n := 1; n <= a.Ports; n++ {
		p, err := c.Port(n)
		if err != nil {
			return 0, err
		}
		if p.Active {
			return n, nil
		}
		states = append(states, fmt.Sprintf("%d is %s", n, p.State))
	}
	return 0, fmt.Errorf("no port is up (%s): %w", strings.Join(states, ", "), syscall.ENETDOWN)
}

// events waits for completions without a thread of its own: the channel's descriptor is the runtime's to poll.
type events struct {
	cq   *verbs.CQ
	ch   *verbs.Channel
	file *os.File // a duplicate, since verbs closes the channel's own
	raw  syscall.RawConn
	take func(fd uintptr) bool // made once, so that a wait allocates nothing
}

const pollBatch = 64

func openEvents(c *verbs.Context, entries int) (*events, error) {
	ch, err := c.CreateChannel()
	if err != nil {
		return nil, err
	}
	e := &events{ch: ch}
	e.take = func(uintptr) bool { return e.cq.TakeEvent() }
	if e.cq, err = c.CreateCQ(entries, pollBatch, ch); err != nil {
		return nil, errors.Join(err, ch.Close())
	}
	fd, err := syscall.Dup(ch.FD())
	if err == nil {
		syscall.CloseOnExec(fd)
		e.file = os.NewFile(uintptr(fd), "rdma completions")
		if err = e.file.SetReadDeadline(time.Time{}); err == nil { // fails where it cannot be polled
			e.raw, err = e.file.SyscallConn()
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("poll completions: %w", err), e.close())
	}
	return e, nil
}

// until sets when wait gives up; a time that has passed wakes it.
func (e *events) until(at time.Time) { _ = e.file.SetReadDeadline(at) } // fails when it is closed only

// wait returns when there was an event or the time has come.
func (e *events) wait() {
	_ = e.raw.Read(e.take) // whoever waits looks again
}

// close follows that of the queue pairs.
func (e *events) close() error {
	var err error
	if e.file != nil {
		err = e.file.Close()
	}
	return errors.Join(err, e.cq.Close(), e.ch.Close())
}
