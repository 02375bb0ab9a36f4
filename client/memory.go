package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"

	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
)

// NewMemory makes n bytes of memory that cannot shrink, maps it, and registers it.
func (c *Client) NewMemory(ctx context.Context, n uint64) (*Region, error) {
	f, err := newFile(n)
	if err != nil {
		return nil, err
	}
	return c.mapAndAdd(ctx, f, n)
}

func (c *Client) mapAndAdd(ctx context.Context, f *os.File, n uint64) (*Region, error) {
	b, err := mapShared(f, n)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	r := &Region{c: c, file: f, n: n, b: b}
	if err := c.add(ctx, r); err != nil {
		return nil, errors.Join(err, r.drop())
	}
	return r, nil
}

// Register registers [off, off+n) of a memfd, or of a file of a tmpfs, that the caller maps by itself. off is a multiple of the file's
// page size. The file is borrowed until the region is closed.
func (c *Client) Register(ctx context.Context, f *os.File, off, n uint64) (*Region, error) {
	r := &Region{c: c, file: f, off: off, n: n}
	if err := c.add(ctx, r); err != nil {
		return nil, err
	}
	return r, nil
}

// Allocate has the node make n bytes of memory, and maps them: for programs whose own memory no other can map.
func (c *Client) Allocate(ctx context.Context, n uint64) (*Region, error) {
	s, err := c.start(ctx, nil)
	if err != nil {
		return nil, err
	}
	reply, f, err := s.link.ask(&enginev1.DescriptorRequest{Request: &enginev1.DescriptorRequest_Allocate{Allocate: &enginev1.Allocate{Len: n}}}, nil)
	if err != nil {
		return nil, fmt.Errorf("allocate %d bytes: %w", n, err)
	}
	if f == nil {
		return nil, errors.New("allocate: the node sent no descriptor")
	}
	b, err := mapShared(f, n)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	r := &Region{c: c, file: f, n: n, b: b}
	s.know(r, reply.GetRegion())
	if err := c.keep(r); err != nil {
		return nil, errors.Join(err, r.drop())
	}
	return r, nil
}

// RegisterDevice registers n bytes of a GPU's memory: from byte off on of the allocation that an IPC handle names (64 bytes, as the
// vendor's library gives it), on the device at a PCI address such as "0000:c1:00.0". The allocation stays the caller's, and lives until
// the region is closed. The region has no bytes and no file here. ErrUnsupported: the node takes no such memory
// (Hello().GetAbilities().GetDeviceIpc() says so beforehand); ErrInvalid: it cannot open the handle; ErrRefused: a limit.
func (c *Client) RegisterDevice(ctx context.Context, pci string, handle []byte, off, n uint64) (*Region, error) {
	r := &Region{c: c, off: off, n: n, device: &lent{pci: pci, handle: bytes.Clone(handle)}}
	if err := c.add(ctx, r); err != nil {
		return nil, err
	}
	return r, nil
}

// add registers a region with the start in use, and with those after it.
func (c *Client) add(ctx context.Context, r *Region) error {
	if err := c.keep(r); err != nil {
		return err
	}
	var err error
	var s *start
	for range maxAttempts {
		if s, err = c.start(ctx, s); err != nil {
			break
		}
		if err = s.register(r); err == nil {
			return nil
		}
		if !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrRestarted) {
			break
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.mu.regions, r)
	return err
}

func (c *Client) keep(r *Region) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return fmt.Errorf("client of %q is closed: %w", c.socket, ErrUnavailable)
	}
	c.mu.regions[r] = struct{}{}
	return nil
}
