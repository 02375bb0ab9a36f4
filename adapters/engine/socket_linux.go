package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"
)

// socket is the listener with the lock that says that its file is served. The lock is a file beside the socket, since a socket cannot
// be locked; it ends with its process, however that ends, and the file stays.
type socket struct {
	*net.UnixListener
	path string
	lock *os.File
	once sync.Once
}

// listen binds under another name and renames, so that the file is never there with a wider mode, and replaces a stale one at once. It
// makes the folder, and none above it: /run is emptied at boot, and a whole path that is not there is more likely a mistake.
func listen(path string) (net.Listener, error) {
	lock, err := lockFile(path + ".lock")
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
			return nil, fmt.Errorf("its folder is not there: %w", err)
		}
		lock, err = lockFile(path + ".lock")
	}
	if err != nil {
		return nil, err
	}
	l, err := bindOver("unix", path)
	if err != nil {
		lock.Close()
		return nil, err
	}
	return &socket{UnixListener: l, path: path, lock: lock}, nil
}

func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: a server that runs has it (%s is locked)", syscall.EADDRINUSE, filepath.Base(path))
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// listenPackets takes the socket for descriptors. Its lock is that of the socket beside it.
func listenPackets(path string) (*net.UnixListener, error) { return bindOver("unixpacket", path) }

func bindOver(network, path string) (*net.UnixListener, error) {
	if err := stale(network, path); err != nil {
		return nil, err
	}
	bound := path + ".new"
	if err := os.Remove(bound); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: bound, Net: network})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // it would unlink the first name
	if err := errors.Join(os.Chmod(bound, 0o600), os.Rename(bound, path)); err != nil {
		l.Close()
		os.Remove(bound)
		return nil, err
	}
	return l, nil
}

// stale returns nil when nothing is at path, or a socket that nobody serves.
func stale(network, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("%w: a file that is no socket (%v)", fs.ErrExist, info.Mode())
	}
	c, err := net.Dial(network, path)
	if err == nil {
		c.Close()
		return fmt.Errorf("%w: another program serves it", syscall.EADDRINUSE)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return nil
}

// Close removes the file, and then lets another server have it.
func (s *socket) Close() error {
	err := net.ErrClosed
	s.once.Do(func() {
		os.Remove(s.path)
		err = s.UnixListener.Close()
		s.lock.Close()
	})
	return err
}

// Addr is the name that is served, not that which was bound.
func (s *socket) Addr() net.Addr { return &net.UnixAddr{Name: s.path, Net: "unix"} }

// sameUser lets in whoever runs as this process's user, and root.
type sameUser struct{ refused *atomic.Uint64 }

// who is what the kernel said of a caller.
type who struct {
	credentials.CommonAuthInfo
	uid uint32
}

func (who) AuthType() string { return "SO_PEERCRED" }

func allowed(uid, own uint32) bool { return uid == own || uid == 0 }

func (s sameUser) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	uid, err := userOf(c)
	if err != nil {
		s.refused.Add(1)
		return nil, nil, err
	}
	return c, who{credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, uid}, nil
}

// userOf asks the kernel who is at the other end, and refuses others than this process's user and root.
func userOf(c net.Conn) (uint32, error) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return 0, fmt.Errorf("caller of type %T is no socket", c)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	if err := errors.Join(raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}), err); err != nil {
		return 0, fmt.Errorf("who calls: %w", err)
	}
	if !allowed(cred.Uid, uint32(os.Geteuid())) {
		return 0, fmt.Errorf("caller of user %d, want %d or root", cred.Uid, os.Geteuid())
	}
	return cred.Uid, nil
}

func (sameUser) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.ErrUnsupported
}

func (sameUser) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "unix"}
}
func (s sameUser) Clone() credentials.TransportCredentials { return s }
func (sameUser) OverrideServerName(string) error           { return nil }
