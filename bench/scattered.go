package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

// scatter is ranges of one size that are not adjacent: every second layer of objects. Or it is objects as a whole.
type scatter struct {
	layer  uint64 // bytes of a range
	layers int    // that are read of an object
	keys   int    // of a call
	sets   int    // calls' worth of objects
	entire bool   // a layer is all of its object, and there is nothing besides
	by     string // transport; empty: TransportTCP
}

// smallest is the smallest layers that are published, of 32 objects a call; 16 calls' worth of objects are 103 MiB.
var smallest = scatter{layer: 1728, layers: 61, keys: 32, sets: 16}

// group is ranges as large as a layer group of the default preset; 8 calls' worth of objects are 288 MiB.
var group = scatter{layer: 8 * 73_728, layers: 4, keys: 8, sets: 8}

// over is the same over another transport.
func (c scatter) over(transport string) scatter {
	c.by = transport
	return c
}

// wholes is the default preset's objects, each read at once; 4 calls' worth of them are 281 MiB.
var wholes = scatter{layer: 61 * 73_728, layers: 1, keys: 16, sets: 4, entire: true}

// step is from a layer to the next one that is read: after each comes one that is not.
func (c scatter) step() uint64 {
	if c.entire {
		return c.layer
	}
	return 2 * c.layer
}

// object is the size of an object.
func (c scatter) object() uint64 { return uint64(c.layers) * c.step() }

// asked is what is read of an object.
func (c scatter) asked() uint64 { return uint64(c.layers) * c.layer }

// scattered is reads of such ranges. Calls go over more objects than caches hold. What the owner has is there a second time, for the bare loops over the same
// fragments; all of them read into the same memory, which the caller has registered.
type scattered struct {
	scatter
	cluster *Cluster
	src     *source // the objects, one behind the other
	into    *buffer
	memory  ports.Memory
	session ports.SessionID // as a rank has one for a restore: a key is resolved once
	m       *moves
	calls   []ports.GetBatch // by lists
	pattern []ports.GetBatch // the same ranges by a pattern, as a rank gives them whose layout stays
	out     []ports.Result
}

const (
	scatteredArena = 16 << 20
	scatteredTime  = 200 * time.Millisecond
)

// openScattered opens two nodes and puts the objects on the one. At the other nothing becomes local: a second read of
// the same ranges crosses again, as it does for what it stands against.
func openScattered(ctx context.Context, open OpenCluster, c scatter, maxMemory uint64) (_ *scattered, err error) {
	c.by = cmp.Or(c.by, TransportTCP)
	s := &scattered{scatter: c, m: &moves{fragment: c.layer}, out: make([]ports.Result, c.keys)}
	objects := uint64(c.sets * c.keys)
	room := guardBytes + (c.layer+guardBytes)*uint64(c.layers)*objects
	needs := []MemoryNeed{{"other node's medium", objects * c.object()}, {"the same for bare loops", objects * c.object()},
		{"destination", room}, {"arenas", 2 * scatteredArena}}
	if err := checkMemory("it", needs, maxMemory); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.src, err = openSource(objects*c.object(), c.by); err != nil {
		return nil, err
	}
	if s.into, err = openBuffer(room); err != nil {
		return nil, err
	}
	s.m.src, s.m.dst = s.src.b, s.into.b
	s.cluster, err = open(ctx, ClusterSpec{Transport: c.by, Locality: domain.LocalityOff, Nodes: []NodeSpec{
		{MediumBytes: c.object(), PageBytes: c.object(), GetArena: scatteredArena, PutArena: scatteredArena},
		{MediumBytes: objects * c.object(), PageBytes: c.object()}}})
	if err != nil {
		return nil, fmt.Errorf("open nodes: %w", err)
	}
	if s.memory, err = s.reader().RegisterMemory(ctx, s.into.region()); err != nil {
		return nil, err
	}
	if s.session, err = s.reader().OpenRead(ctx, namespace); err != nil {
		return nil, err
	}
	return s, s.fill(ctx)
}

func (s *scattered) reader() ports.Pool { return s.cluster.Nodes[0].Pool }

func scatteredName(i int) string { return fmt.Sprintf("scattered/%d", i) }

// fill puts the objects, and lays out the calls.
func (s *scattered) fill(ctx context.Context) error {
	to := uint64(guardBytes)
	for set := range s.sets {
		call := ports.GetBatch{Namespace: namespace, Regions: []ports.Memory{s.memory}, Session: s.session}
		byPattern := call
		byPattern.Patterns = []ports.Pattern{s.patternAt(to)}
		var pieces []piece
		for k := range s.keys {
			name := scatteredName(set*s.keys + k)
			base := uint64(set*s.keys+k) * s.object()
			object := s.src.b[base:][:s.object()]
			content.Fill(object, contentKey(name), 0)
			if res := putLayers(ctx, s.cluster.Nodes[1].Pool, name, object, s.layer); res.Status != ports.Stored {
				return fmt.Errorf("%w: seed key %q: status %s, want %s", ErrFailed, name, res.Status, ports.Stored)
			}
			for l := range uint64(s.layers) {
				off := l * s.step()
				pieces = append(pieces, piece{base + off, to})
				call.Ranges = append(call.Ranges, domain.Range{Off: off, Len: s.layer, RegionOff: to})
				to += s.layer + guardBytes
			}
			call.Keys, call.End = append(call.Keys, name), append(call.End, uint32(len(call.Ranges)))
		}
		byPattern.Keys = call.Keys
		s.calls, s.pattern, s.m.calls = append(s.calls, call), append(s.pattern, byPattern), append(s.m.calls, pieces)
	}
	return nil
}

// patternAt is the ranges of a call, whose first range goes to an offset of the destination.
func (s *scattered) patternAt(to uint64) (p ports.Pattern) {
	each := s.layer + guardBytes
	for l := range uint64(s.layers) {
		p.Ranges = append(p.Ranges, domain.PatternRange{Off: l * s.step(), Len: s.layer, Base: to + l*each, Stride: uint64(s.layers) * each})
	}
	for k := range uint64(s.keys) {
		p.Rows = append(p.Rows, k)
	}
	return p
}

// close ends what openScattered opened, as far as it came.
func (s *scattered) close() error {
	var errs []error
	if s.session != 0 {
		errs = append(errs, s.reader().CloseRead(s.session))
	}
	if s.memory.ID != 0 {
		errs = append(errs, s.reader().DeregisterMemory(context.Background(), s.memory.ID))
	}
	if s.cluster != nil {
		errs = append(errs, s.cluster.Close())
	}
	if s.src != nil {
		errs = append(errs, s.src.close())
	}
	if s.into != nil {
		errs = append(errs, s.into.close())
	}
	return errors.Join(errs...)
}

// ours makes one of those calls through the node. All of its bytes must have crossed.
func (s *scattered) ours(ctx context.Context, calls []ports.GetBatch, i int) error {
	if err := s.reader().BatchGetRanges(ctx, &calls[i], s.out); err != nil {
		return err
	}
	for k, r := range s.out {
		if r.Status != ports.Hit || r.Fetched != s.asked() {
			return fmt.Errorf("%w: read of key %q: status %s, %d bytes fetched, error %v; want %s and %d", ErrFailed, s.calls[i].Keys[k],
				r.Status, r.Fetched, r.Err, ports.Hit, s.asked())
		}
	}
	return nil
}

// verified measures with a destination of poison, and looks at all of it afterwards.
func (s *scattered) verified(measure func() (float64, error)) (float64, error) {
	content.Poison(s.into.b)
	rate, err := measure()
	if err != nil {
		return 0, err
	}
	end := uint64(0)
	for i, call := range s.m.calls {
		for f, p := range call {
			off := p.from % s.object()
			name := s.calls[i].Keys[f/s.layers]
			if bad := content.Check(s.m.lands(p), contentKey(name), off); bad >= 0 {
				return 0, fmt.Errorf("%w: read of key %q from offset %d: wrong byte at %d", ErrFailed, name, off, bad)
			}
			if bad := content.CheckPoison(s.into.b[end:p.to]); bad >= 0 {
				return 0, fmt.Errorf("%w: byte %d of the destination was written, which belongs to nothing", ErrFailed, end+uint64(bad))
			}
			end = p.to + s.layer
		}
	}
	return rate, nil
}
