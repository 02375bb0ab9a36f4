package client

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
)

// maxPacket is the protocol's bound.
const maxPacket = 4096

// answerWithin bounds a registration; the node gives every page its memory before it answers.
const answerWithin = 60 * time.Second

// link is the connection for descriptors: the client's life at one start of the node.
type link struct {
	conn *net.UnixConn
	mu   sync.Mutex // one packet at a time, each way
	dead bool       // guarded by mu: it ended, or an answer did not come in time
}

// attach ties a connection to a client.
func attach(path string, hello *enginev1.HelloReply) (*link, error) {
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, fmt.Errorf("socket for descriptors: %w: %w", err, ErrUnavailable)
	}
	l := &link{conn: conn}
	if _, _, err := l.ask(&enginev1.DescriptorRequest{Request: &enginev1.DescriptorRequest_Attach{
		Attach: &enginev1.Attach{Boot: hello.GetBoot(), Client: hello.GetClient()}}}, nil); err != nil {
		return nil, errors.Join(fmt.Errorf("attach: %w", err), conn.Close())
	}
	return l, nil
}

// Close is the client's end at that start of the node.
func (l *link) Close() error {
	if err := l.conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// ended reports whether the node has closed the connection. Nothing is asked for at the moment, so that nothing else can come.
func (l *link) ended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead {
		return true
	}
	_ = l.conn.SetReadDeadline(time.Now().Add(time.Millisecond))
	n, err := l.conn.Read(make([]byte, 1))
	l.dead = err == nil && n == 0 || err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
	return l.dead
}

// ask sends a packet, with a file or none, and takes its answer; the file that came is the caller's.
func (l *link) ask(req *enginev1.DescriptorRequest, file *os.File) (*enginev1.DescriptorReply, *os.File, error) {
	b, err := proto.Marshal(req)
	if err != nil {
		return nil, nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead {
		return nil, nil, fmt.Errorf("socket for descriptors has ended: %w", ErrUnavailable)
	}
	reply, back, err := l.exchange(b, file)
	if err != nil {
		l.dead = true
		return nil, nil, fmt.Errorf("socket for descriptors: %w: %w", err, ErrUnavailable)
	}
	if c := codes.Code(reply.GetCode()); c != codes.OK {
		if back != nil {
			back.Close()
		}
		return nil, nil, &callError{call: "register", socket: l.conn.RemoteAddr().String(), status: status.New(c, reply.GetReason())}
	}
	return reply, back, nil
}

func (l *link) exchange(b []byte, file *os.File) (*enginev1.DescriptorReply, *os.File, error) {
	if err := l.conn.SetDeadline(time.Now().Add(answerWithin)); err != nil {
		return nil, nil, err
	}
	if err := l.send(b, file); err != nil {
		return nil, nil, err
	}
	in, oob := make([]byte, maxPacket), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := l.conn.ReadMsgUnix(in, oob)
	if err != nil {
		return nil, nil, err
	}
	if n == 0 {
		return nil, nil, errors.New("the node closed it")
	}
	reply := new(enginev1.DescriptorReply)
	back := fileOf(oob[:oobn])
	if err := proto.Unmarshal(in[:n], reply); err != nil {
		if back != nil {
			back.Close()
		}
		return nil, nil, err
	}
	return reply, back, nil
}

func (l *link) send(b []byte, file *os.File) error {
	if file == nil {
		_, _, err := l.conn.WriteMsgUnix(b, nil, nil)
		return err
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	if err := raw.Control(func(fd uintptr) { _, _, sent = l.conn.WriteMsgUnix(b, unix.UnixRights(int(fd)), nil) }); err != nil {
		return err
	}
	return sent
}

func fileOf(oob []byte) *os.File {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(messages) != 1 {
		return nil
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil
	}
	return os.NewFile(uintptr(fds[0]), "spanpool")
}

// newFile makes a memfd that cannot shrink, which lets transports read straight into it.
func newFile(n uint64) (*os.File, error) {
	fd, err := unix.MemfdCreate("spanpool", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "spanpool")
	if err := f.Truncate(int64(n)); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		return nil, errors.Join(fmt.Errorf("seal: %w", err), f.Close())
	}
	return f, nil
}

func mapShared(f *os.File, n uint64) ([]byte, error) {
	b, err := unix.Mmap(int(f.Fd()), 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap %d bytes: %w", n, err)
	}
	return b, nil
}

// drop gives back what the client made for a region.
func (r *Region) drop() error {
	if r.b == nil {
		return nil
	}
	err := errors.Join(unix.Munmap(r.b), r.file.Close())
	r.b = nil
	return err
}
