package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
)

// Devices opens memory of GPUs that clients lend.
type Devices interface {
	// Lend opens n bytes at off of what an IPC handle names, on the device at a PCI address. release ends that, and is called once,
	// when no call uses the memory.
	Lend(pci string, handle []byte, off, n uint64) (r ports.DeviceRegion, release func() error, err error)
}

// RegisterDevice opens a client's GPU memory, and registers it where a transport reaches such. It is closed with the client.
func (s *calls) RegisterDevice(ctx context.Context, req *enginev1.RegisterDeviceRequest) (*enginev1.RegisterDeviceReply, error) {
	if s.Devices == nil {
		return nil, statusOf(fmt.Errorf("memory of a GPU: %w", errors.ErrUnsupported))
	}
	return with(s, ctx, req.GetCaller(), func(_ context.Context, c *client, _ *call) (*enginev1.RegisterDeviceReply, error) {
		if req.GetLen() == 0 {
			return nil, fmt.Errorf("%w: bytes of a region: 0, limit 1 or more", domain.ErrInvalid)
		}
		mapped, err := c.mayMap(0) // not the host's memory, but a region
		if err != nil {
			return nil, err
		}
		defer mapped()
		lent, release, err := s.Devices.Lend(req.GetDevice(), req.GetIpcHandle(), req.GetOff(), req.GetLen())
		if err != nil {
			return nil, err
		}
		r, err := c.add(mapping{region: lent, sealed: true, unmap: release})
		if err != nil {
			return nil, errors.Join(err, release())
		}
		return &enginev1.RegisterDeviceReply{Region: &enginev1.Region{Region: r.id, Len: lent.Len(), Sealed: true, Direct: r.memory.ID != 0}}, nil
	})
}
