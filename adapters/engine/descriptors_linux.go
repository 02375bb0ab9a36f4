package engine

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/spanpool/spanpool/domain"
	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
)

const (
	maxPacket       = 4096
	maxPacketFDs    = 4  // more are cut off by the kernel, and refused
	moreAttached    = 16 // connections above the clients: those that did not attach yet
	acceptAgain     = 10 * time.Millisecond
	answerPacket    = 5 * time.Second // a client that reads no answers is let go
	maxRegionLength = 1 << 46         // more than any address space has
)

// descriptors serves the second socket: who attaches, and what memory is shared.
type descriptors struct {
	listener *net.UnixListener
	path     string
	clients  *clients
	boot     domain.Incarnation
	wg       sync.WaitGroup
	stopped  chan struct{}

	mu struct {
		sync.Mutex
		stopped bool
		conns   map[*net.UnixConn]struct{}
	}
}

func listenDescriptors(path string, cs *clients, boot domain.Incarnation) (*descriptors, error) {
	l, err := listenPackets(path)
	if err != nil {
		return nil, fmt.Errorf("socket %q: %w", path, err)
	}
	d := &descriptors{listener: l, path: path, clients: cs, boot: boot, stopped: make(chan struct{})}
	d.mu.conns = make(map[*net.UnixConn]struct{})
	return d, nil
}

// start accepts in a goroutine that stop waits for.
func (d *descriptors) start() {
	d.wg.Go(func() {
		for {
			conn, err := d.listener.AcceptUnix()
			if err == nil {
				d.admit(conn)
				continue
			}
			if errors.Is(err, net.ErrClosed) {
				return
			}
			select { // out of descriptors: others may give some back
			case <-d.stopped:
				return
			case <-time.After(acceptAgain):
			}
		}
	})
}

// admit serves a connection, or closes it.
func (d *descriptors) admit(conn *net.UnixConn) {
	if _, err := userOf(conn); err != nil {
		d.clients.count.refused[refusedUser].Add(1)
		conn.Close()
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.stopped || uint64(len(d.mu.conns)) >= d.clients.bounds.MaxClients+moreAttached {
		d.clients.count.refused[refusedLimit].Add(1)
		conn.Close()
		return
	}
	d.mu.conns[conn] = struct{}{}
	d.wg.Go(func() {
		d.serve(conn)
		d.mu.Lock()
		delete(d.mu.conns, conn)
		d.mu.Unlock()
	})
}

// stop closes every connection, and returns when what their clients had is let go of.
func (d *descriptors) stop() {
	d.mu.Lock()
	first := !d.mu.stopped
	d.mu.stopped = true
	for conn := range d.mu.conns {
		conn.Close()
	}
	d.mu.Unlock()
	if first {
		close(d.stopped)
		os.Remove(d.path)
		d.listener.Close()
	}
	d.wg.Wait()
}

// ending is why a connection has closed: it was ours to close, or the client's.
func (d *descriptors) ending() ending {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.stopped {
		return endedStop
	}
	return endedClosed
}

// serve answers packets until the connection closes, which is the client's end.
func (d *descriptors) serve(conn *net.UnixConn) {
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(attachWithin)) // fails on a closed connection only, as the read then does
	var c *client
	defer func() {
		if c != nil {
			c.end(d.ending())
		}
	}()
	for {
		req, files, err := receivePacket(conn)
		if errors.Is(err, errNoPacket) {
			return
		}
		var answer answered
		if err == nil {
			answer, err = d.answer(&c, req, files)
		}
		closeAll(files)
		if c != nil {
			_ = conn.SetReadDeadline(time.Time{})
		}
		if reply(conn, answer, err) != nil {
			return
		}
	}
}

// answered is what goes back. The file, if there is one, is closed once it is sent.
type answered struct {
	region *region
	file   *os.File
}

// answer does what a packet asks for. The first good attach sets the client.
func (d *descriptors) answer(c **client, req *enginev1.DescriptorRequest, files []*os.File) (answered, error) {
	if a := req.GetAttach(); a != nil {
		if *c != nil || len(files) > 0 {
			return answered{}, d.malformed("attach comes first, once, and without descriptors")
		}
		if a.GetBoot() != uint64(d.boot) {
			return answered{}, d.clients.gone()
		}
		found, err := d.clients.attach(a.GetClient())
		*c = found
		return answered{}, err
	}
	if *c == nil {
		return answered{}, d.malformed("the first packet attaches")
	}
	switch r := req.GetRequest().(type) {
	case *enginev1.DescriptorRequest_RegisterFile:
		if len(files) != 1 {
			return answered{}, d.malformed(fmt.Sprintf("register: %d descriptors, want 1", len(files)))
		}
		return d.register(*c, r.RegisterFile.GetLen(), func() (mapping, *os.File, error) {
			m, err := mapFile(files[0], r.RegisterFile.GetOff(), r.RegisterFile.GetLen())
			return m, nil, err
		})
	case *enginev1.DescriptorRequest_Allocate:
		if len(files) != 0 {
			return answered{}, d.malformed(fmt.Sprintf("allocate: %d descriptors, want none", len(files)))
		}
		return d.register(*c, r.Allocate.GetLen(), func() (mapping, *os.File, error) { return allocate(r.Allocate.GetLen()) })
	}
	return answered{}, d.malformed("a packet that asks for nothing known")
}

func (d *descriptors) malformed(what string) error {
	return d.clients.refuse(refusedMalformed, codes.InvalidArgument, errors.New(what))
}

// register counts a region in, makes it, and names it; what fails on the way is undone.
func (d *descriptors) register(c *client, n uint64, make func() (mapping, *os.File, error)) (answered, error) {
	if n == 0 || n > maxRegionLength {
		return answered{}, d.clients.refuse(refusedMalformed, codes.InvalidArgument, &domain.LimitError{What: "bytes of a region (1 or more)", Value: n, Limit: maxRegionLength})
	}
	mapped, err := c.mayMap(n)
	if err != nil {
		return answered{}, err
	}
	defer mapped()
	m, file, err := make()
	if err != nil {
		c.giveBack(n)
		d.clients.count.refused[refusedMalformed].Add(1)
		return answered{}, codeOf(err)
	}
	r, err := c.add(m)
	if err != nil {
		c.giveBack(n)
		closeAll([]*os.File{file})
		return answered{}, errors.Join(codeOf(err), m.unmap())
	}
	return answered{r, file}, nil
}

// codeOf is what a client is told of an error of the kernel's.
func codeOf(err error) error {
	if errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.EFAULT) {
		return status.Error(codes.ResourceExhausted, err.Error())
	}
	return statusOf(err)
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

// errNoPacket says that the connection has ended.
var errNoPacket = errors.New("no packet")

// receivePacket takes one packet. Its files are the caller's to close, whatever the error.
func receivePacket(conn *net.UnixConn) (*enginev1.DescriptorRequest, []*os.File, error) {
	b := make([]byte, maxPacket)
	oob := make([]byte, unix.CmsgSpace(4*maxPacketFDs))
	n, oobn, flags, _, err := conn.ReadMsgUnix(b, oob)
	files := filesOf(oob[:max(oobn, 0)])
	if err != nil || n == 0 {
		closeAll(files)
		return nil, nil, errNoPacket
	}
	req, err := parsePacket(b[:n], flags)
	return req, files, err
}

// parsePacket reads what a client sent.
func parsePacket(b []byte, flags int) (*enginev1.DescriptorRequest, error) {
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		return nil, status.Errorf(codes.InvalidArgument, "a packet of more than %d bytes or %d descriptors", maxPacket, maxPacketFDs)
	}
	req := new(enginev1.DescriptorRequest)
	if err := proto.Unmarshal(b, req); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "packet of %d bytes: %v", len(b), err)
	}
	return req, nil
}

// filesOf takes the descriptors out of a control message.
func filesOf(oob []byte) (files []*os.File) {
	for _, fd := range rightsOf(oob) {
		files = append(files, os.NewFile(uintptr(fd), "client"))
	}
	return files
}

// rightsOf is the descriptors of a control message, as numbers. What is no rights message carries none.
func rightsOf(oob []byte) (fds []int) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for i := range messages {
		if len(messages[i].Data)%4 != 0 { // which no kernel sends, and ParseUnixRights panics of
			continue
		}
		if got, err := unix.ParseUnixRights(&messages[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	return fds
}

// reply sends one packet, and closes the answer's file. An error ends the connection.
func reply(conn *net.UnixConn, a answered, failed error) error {
	m := &enginev1.DescriptorReply{Protocol: 1}
	if failed != nil {
		s := status.Convert(failed)
		m.Code, m.Reason = uint32(s.Code()), strings.ToValidUTF8(s.Message()[:min(len(s.Message()), maxPacket/2)], "?")
	}
	if r := a.region; r != nil {
		m.Region = &enginev1.Region{Region: r.id, Len: r.mapped.region.Len(), Sealed: r.mapped.sealed, Direct: r.memory.ID != 0}
	}
	var rights []byte
	if a.file != nil {
		defer a.file.Close()
		rights = unix.UnixRights(int(a.file.Fd()))
	}
	b, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	if err := conn.SetWriteDeadline(time.Now().Add(answerPacket)); err != nil {
		return err
	}
	_, _, err = conn.WriteMsgUnix(b, rights, nil)
	return err
}
