package bench

import (
	"context"
	"errors"
	"time"

	"github.com/spanpool/spanpool/domain"
)

const gibBytes = 1 << 30

// tcpLeast is the time of a bare loop, of which several make one figure.
const tcpLeast = 100 * time.Millisecond

// tcpBars are the bars over sockets of loopback. No link is modelled: what crosses is copied by the kernel.
func (o *Ratios) tcpBars(open OpenCluster) []pairing {
	one := o.overTCP(1, 3)
	eight := o.overTCP(8, 1)
	eight.OffloadRanks = 8
	return []pairing{
		o.groupsBar("tcp-layerwise", "", o.groupsOverTCP(1), open, ofBare("", 0.5), ofBare(" by slots", 0.6)),
		o.groupsBar("tcp-direct", ", locality off, into registered memory", direct(o.groupsOverTCP(1)), open, ofBare("", 0.8)),
		o.ranksBar("tcp-ranks-8", "", o.groupsOverTCP, open),
		o.ranksBar("tcp-direct-ranks-8", ", locality off, into registered memory", func(n int) Layerwise { return direct(o.groupsOverTCP(n)) }, open),
		o.fragmentsBar(open), o.redisBar(open), o.redisWholeBar(open),
		againstWhole("tcp-restore-1", "61 x 73,728 B, 32 pages, group 8, 1 rank, over TCP", one, open,
			lower(ColTTFLP50, 6, refTTFL), notAbove(ColRestoreP50, refRestore), higher(ColGetRate, 0, refGet)),
		againstWhole("tcp-restore-8", "the same, 8 ranks beside 8 that offload", eight, open,
			lower(ColTTFLP95, 4, refTTFL), notAbove(ColRestoreP95, refRestore), higher(ColGetRate, 0, refGet), higher(ColPutRate, 0, refPut)),
	}
}

func (o *Ratios) overTCP(ranks, requests int) Layerwise {
	l := o.restores("deepseek-v3.2", 8, 32, ranks, requests)
	l.Transport, l.Link = TransportTCP, LinkSpec{}
	return l
}

// groupMoves is the full layer groups of a rank's requests for bare loops: of each object a group is one fragment, and whatever lies
// between is not moved.
func groupMoves(requests int) (*moves, []MemoryNeed) {
	const layer, layers, group, pages = 73_728, 61, 8, 32
	m := &moves{fragment: group * layer}
	for r := range uint64(requests) {
		for g := range uint64(layers / group) {
			var call []piece
			for p := range uint64(pages) {
				call = append(call, piece{(r*pages+p)*layers*layer + g*m.fragment, (g*pages + p) * m.fragment})
			}
			m.calls = append(m.calls, call)
		}
	}
	return m, []MemoryNeed{{"source of bare loops", uint64(requests) * pages * layers * layer}, {"destination of bare loops", layers / group * pages * m.fragment}}
}

// groupsOverTCP is ranks that compute nothing, so that all they wait for is bytes: three requests of one rank, or one of each.
func (o *Ratios) groupsOverTCP(ranks int) Layerwise {
	l := o.overTCP(ranks, 3)
	if ranks > 1 {
		l.Requests = 1
	}
	l.ComputePerLayer = 0
	return l
}

// direct is the same by the route that puts nothing between a socket and the caller's memory.
func direct(l Layerwise) Layerwise {
	l.Locality, l.Register = domain.LocalityOff, true
	return l
}

// ranksBar is eight ranks at once against one of them.
func (o *Ratios) ranksBar(name, how string, of func(ranks int) Layerwise, open OpenCluster) pairing {
	return pairing{name: name, what: "8 ranks at once that compute nothing, layer groups of 32 objects over TCP" + how + ": against 1 rank",
		ours: restoreSide(of(8), open), theirs: restoreSide(of(1), open),
		bars: []bar{higher(ColGetRate, 0.9, "")}}
}

// ofBare holds a rate to the best bare loop's.
func ofBare(how string, atLeast float64) bar {
	return bar{name: ColGetRate.String() + " of bare" + how, figure: int(ColGetRate), bare: true, atLeast: atLeast, reference: refBare}
}

// groupsBar is one rank that computes nothing against the best bare loop over fragments as large as its groups.
func (o *Ratios) groupsBar(name, how string, l Layerwise, open OpenCluster, bars ...bar) pairing {
	m, needs := groupMoves(l.Requests)
	var src, dst *buffer
	theirs := func(context.Context) (s sample, err error) {
		if src == nil {
			if err = checkMemory("it", needs, o.MaxMemory); err != nil {
				return s, err
			}
			if src, err = openBuffer(needs[0].Bytes); err != nil {
				return s, err
			}
			if dst, err = openBuffer(needs[1].Bytes); err != nil {
				return s, err
			}
			for i := range src.b { // touched, and not the one page of zeros that nobody wrote
				src.b[i] = byte(i)
			}
			clear(dst.b)
			m.src, m.dst = src.b, dst.b
		}
		noise := startNoise(nil, LinkSpec{}, o.Root)
		best, _, err := m.bareBest(0, bareConns, placing())
		s = sample{figures: make([]float64, NumColumns), noise: noise.stop()}
		s.figures[ColGetRate] = best / gibBytes
		return s, err
	}
	return pairing{name: name, what: "1 rank that computes nothing, layer groups of 32 objects over TCP" + how + ": against the best bare loop of 1 and 4 connections into place",
		ours: restoreSide(l, open), theirs: theirs,
		bars: bars,
		end: func() error {
			var errs []error
			for _, b := range []*buffer{src, dst} {
				if b != nil {
					errs = append(errs, b.close())
				}
			}
			return errors.Join(errs...)
		}}
}

// checksumBar is a rank that computes nothing, with sums and without.
func (o *Ratios) checksumBar(open OpenCluster) pairing {
	with := o.overTCP(1, 3)
	with.ComputePerLayer, with.NoChecksums = 0, false
	without := with
	without.NoChecksums = true
	return pairing{name: "tcp-checksum", what: "1 rank that computes nothing, layer groups of 32 objects over TCP: with checksums against without",
		ours: restoreSide(with, open), theirs: restoreSide(without, open),
		bars: []bar{higher(ColGetRate, 0.75, "no checksums")}}
}

const (
	refBare      = "redis GETRANGE into place 2.7 GiB/s, Mooncake's ranged sessions 1.6 (2.6 by four threads), where bare loops give 4 to 7"
	refWholes    = "redis 1.1 to 1.3 GiB/s with 4,392 KiB at once, 2.7 to 3.0 in slices of 576 KiB"
	refFragments = "redis some 1 GiB/s, Mooncake 0.04"
)

// shared is what the sides of a bar of small ranges have in common. The first one to measure opens it.
type shared struct {
	open      func(ctx context.Context) (*scattered, error)
	withRedis bool
	scattered *scattered
	redis     *redisServer // holds the same objects
}

func (s *shared) ready(ctx context.Context) (err error) {
	if s.scattered == nil {
		if s.scattered, err = s.open(ctx); err != nil {
			return err
		}
	}
	if s.withRedis && s.redis == nil {
		if s.redis, err = startRedis(ctx); err != nil {
			return err
		}
		return s.scattered.store(s.redis)
	}
	return nil
}

func (s *shared) close() error {
	var errs []error
	if s.redis != nil {
		errs = append(errs, s.redis.close())
	}
	if s.scattered != nil {
		errs = append(errs, s.scattered.close())
	}
	return errors.Join(errs...)
}

// side measures on what is shared: a figure by each.
func (s *shared) side(o *Ratios, of ...func(ctx context.Context, s *shared) (float64, error)) side {
	return func(ctx context.Context) (sample, error) {
		if err := s.ready(ctx); err != nil {
			return sample{}, err
		}
		noise := startNoise(nil, LinkSpec{}, o.Root)
		if s.redis != nil {
			noise.include(s.redis.cmd.Process.Pid)
		}
		var figures []float64
		for _, f := range of {
			rate, err := s.scattered.verified(func() (float64, error) { return f(ctx, s) })
			if err != nil {
				return sample{}, err
			}
			figures = append(figures, rate/gibBytes)
		}
		return sample{figures: figures, noise: noise.stop()}, nil
	}
}

func (o *Ratios) shared(open OpenCluster, c scatter, withRedis bool) *shared {
	return &shared{withRedis: withRedis, open: func(ctx context.Context) (*scattered, error) {
		return openScattered(ctx, open, c, o.MaxMemory)
	}}
}

// ceilingOf is what the best bare loop over such fragments reaches.
func (o *Ratios) ceilingOf(transport string, fragment uint64) func() (float64, error) {
	return func() (float64, error) { return o.Ceilings.rate(transport, LinkSpec{}, fragment) }
}

func rateOurs(ctx context.Context, s *shared) (float64, error) {
	return s.scattered.m.rate(scatteredTime, func(i int) error { return s.scattered.ours(ctx, s.scattered.calls, i) })
}

func rateByPattern(ctx context.Context, s *shared) (float64, error) {
	return s.scattered.m.rate(scatteredTime, func(i int) error { return s.scattered.ours(ctx, s.scattered.pattern, i) })
}

func rateBare(_ context.Context, s *shared) (float64, error) {
	best, _, err := s.scattered.m.bareBest(tcpLeast, bareConns, placing())
	return best, err
}

// rateRedis is the better of 1 and 4 connections.
func rateRedis(_ context.Context, s *shared) (best float64, err error) {
	for _, n := range bareConns {
		l, err := s.scattered.openRedisLoop(s.redis, n)
		if err != nil {
			return 0, err
		}
		r, err := s.scattered.m.rate(tcpLeast, l.call)
		if err := errors.Join(err, l.close()); err != nil {
			return 0, err
		}
		best = max(best, r)
	}
	return best, nil
}

func (o *Ratios) fragmentsBar(open OpenCluster) pairing {
	s := o.shared(open, smallest, false)
	return pairing{name: "tcp-fragments", what: "1,728 B ranges that are not adjacent, 61 of each of 32 keys, in a session, into registered memory over TCP: against the best bare loop over the same fragments",
		ours: s.side(o, rateOurs), theirs: s.side(o, rateBare), end: s.close,
		bars: []bar{{name: "get_gibps of bare", bare: true, atLeast: 0.6, reference: refFragments}}}
}

func (o *Ratios) redisBar(open OpenCluster) pairing {
	s := o.shared(open, smallest, true)
	return pairing{name: "tcp-redis", what: "the same ranges: against redis-server's GETRANGE, all of a call at once, the better of 1 and 4 connections",
		ours: s.side(o, rateOurs), theirs: s.side(o, rateRedis), end: s.close, absent: redisAbsent, ceiling: o.ceilingOf(TransportTCP, smallest.layer),
		bars: []bar{{name: "get_gibps over redis", atLeast: 1.1, reference: refFragments}}}
}

func (o *Ratios) redisWholeBar(open OpenCluster) pairing {
	s := o.shared(open, wholes, true)
	return pairing{name: "tcp-redis-whole", what: "whole objects of 4,392 KiB, 16 a call, in a session, into registered memory over TCP: against redis-server, one GETRANGE for each, all of a call at once, the better of 1 and 4 connections",
		ours: s.side(o, rateOurs), theirs: s.side(o, rateRedis), end: s.close, absent: redisAbsent, ceiling: o.ceilingOf(TransportTCP, wholes.layer),
		bars: []bar{{name: "get_gibps over redis", atLeast: 2.5, reference: refWholes}}}
}
