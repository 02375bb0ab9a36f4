package domain

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// tableModel is a table as maps and slices: it does everything by looking at everything.
type tableModel struct {
	table    *Table
	cfg      TableConfig
	total    uint64
	now      Instant
	seq      int
	slots    map[SlotID]*modelSlot // all that are not free
	counters map[uint64]bool       // of all generations so far
	doomed   [NumDoomCauses]uint64
}

type modelSlot struct {
	NewSlot
	id      SlotID
	state   SlotState
	seq     int // when it came to its list, or was touched there
	pages   []PageRef
	gen     Generation
	pins    uint32
	lease   Instant
	hold    Instant
	granted bool
	lens    []uint64
	sums    []uint32
	have    []bool // the bytes that a filling slot holds
}

const modelPageSize = 10

func newTableModel(scatter bool) *tableModel {
	cfg := TableConfig{
		Incarnation: 7, PageSize: modelPageSize, BufferPages: []uint32{7, 64, 9}, Scatter: scatter,
		MaxFillingPages: 20, MaxHeldPages: 12,
	}
	return &tableModel{
		table: NewTable(cfg), cfg: cfg, total: 80, now: 1,
		slots: map[SlotID]*modelSlot{}, counters: map[uint64]bool{},
	}
}

func (s *modelSlot) n() uint64 { return (s.Size + modelPageSize - 1) / modelPageSize }

// where lists the slots that pass, by id, so that draws repeat.
func (m *tableModel) where(pass func(*modelSlot) bool) (found []*modelSlot) {
	for _, s := range m.slots {
		if pass(s) {
			found = append(found, s)
		}
	}
	slices.SortFunc(found, func(a, b *modelSlot) int { return cmp.Compare(a.id, b.id) })
	return found
}

func (m *tableModel) pagesWhere(pass func(*modelSlot) bool) (n uint64) {
	for _, s := range m.where(pass) {
		n += s.n()
	}
	return n
}

func (m *tableModel) free() uint64 {
	return m.total - m.pagesWhere(func(*modelSlot) bool { return true })
}

func (m *tableModel) key(space Space, name string, state SlotState) *modelSlot {
	found := m.where(func(s *modelSlot) bool { return s.Space == space && s.Name == name && s.state == state })
	if len(found) == 0 {
		return nil
	}
	return found[0]
}

func (m *tableModel) kept(s *modelSlot) bool { return s.pins > 0 || s.lease > m.now || s.granted }

func (m *tableModel) reap(s *modelSlot) {
	if s.state == SlotDoomed && !m.kept(s) {
		delete(m.slots, s.id)
	}
}

func (m *tableModel) place(s *modelSlot, state SlotState) {
	m.seq++
	s.state, s.seq = state, m.seq
}

// victims is every slot that could give way, in order.
func (m *tableModel) victims() []*modelSlot {
	class := func(s *modelSlot) int {
		switch {
		case s.state == SlotFilling:
			return 0
		case s.Origin == FetchedHere:
			return 1
		}
		return 2
	}
	v := m.where(func(s *modelSlot) bool {
		return (s.state == SlotFilling || s.state == SlotCommitted && s.hold <= m.now) && !m.kept(s)
	})
	slices.SortFunc(v, func(a, b *modelSlot) int {
		return cmp.Or(cmp.Compare(class(a), class(b)), cmp.Compare(a.seq, b.seq))
	})
	return v
}

func (m *tableModel) planEviction(
	victims []*modelSlot, free, filling, need uint64, state SlotState,
) (plan []SlotID, ok bool) {
	fits := func() bool { return state != SlotFilling || filling+need <= m.cfg.MaxFillingPages }
	for _, s := range victims {
		if free >= need && (fits() || s.state != SlotFilling) {
			break
		}
		plan = append(plan, s.id)
		free += s.n()
		if s.state == SlotFilling {
			filling -= s.n()
		}
	}
	if free < need || !fits() {
		return nil, false
	}
	return plan, true
}

func (m *tableModel) planWatermark(victims []*modelSlot, free, low uint64) (plan []SlotID) {
	for _, s := range victims {
		if free >= low {
			break
		}
		plan = append(plan, s.id)
		free += s.n()
	}
	return plan
}

func drawNew(t *rapid.T) NewSlot {
	return NewSlot{
		Space:    Space(rapid.IntRange(0, 1).Draw(t, "space")),
		Name:     rapid.SampledFrom([]string{"a", "b", "a longer key than all others", "d", "e"}).Draw(t, "name"),
		Version:  Version{Hi: 1, Lo: rapid.Uint64Range(1, 3).Draw(t, "version")},
		Size:     rapid.Uint64Range(1, 150).Draw(t, "size"),
		State:    rapid.SampledFrom([]SlotState{SlotPending, SlotFilling}).Draw(t, "state"),
		Origin:   rapid.SampledFrom([]Origin{PutHere, FetchedHere}).Draw(t, "origin"),
		Deadline: Instant(rapid.IntRange(0, 60).Draw(t, "deadline")),
	}
}

// pick draws a slot that passes, or nil when there is none.
func (m *tableModel) pick(t *rapid.T, pass func(*modelSlot) bool) *modelSlot {
	found := m.where(pass)
	if len(found) == 0 {
		return nil
	}
	return found[rapid.IntRange(0, len(found)-1).Draw(t, "slot")]
}

func visible(s *modelSlot) bool   { return s.state != SlotDoomed }
func committed(s *modelSlot) bool { return s.state == SlotCommitted }

func (m *tableModel) reserve(t *rapid.T) {
	n := drawNew(t)
	if m.key(n.Space, n.Name, n.State) != nil {
		return
	}
	if rapid.Bool().Draw(t, "evict") {
		plan, ok := m.table.PlanEviction(m.table.PagesFor(n.Size), n.State, m.now, nil)
		for _, id := range plan {
			m.doom(m.slots[id], DoomEvicted)
		}
		m.reserveNew(t, n, ok)
		return
	}
	before := m.table.Stats()
	pages := m.table.PagesFor(n.Size)
	fits := pages <= m.free() && (n.State == SlotPending || pages+before.Pages[SlotFilling] <= m.cfg.MaxFillingPages)
	m.reserveNew(t, n, fits)
	if !fits {
		require.Equal(t, before, m.table.Stats(), "a refused reservation changed something")
	}
}

func (m *tableModel) reserveNew(t *rapid.T, n NewSlot, fits bool) {
	id, err := m.table.Reserve(n)
	if !fits {
		require.ErrorIs(t, err, ErrNoSpace)
		return
	}
	require.NoError(t, err)
	require.NotContains(t, m.slots, id)
	gen := m.table.Info(id).Generation
	require.Equal(t, m.cfg.Incarnation, gen.Incarnation)
	require.NotZero(t, gen.Counter)
	require.False(t, m.counters[gen.Counter], "generation %d was used before", gen.Counter)
	m.counters[gen.Counter] = true
	s := &modelSlot{NewSlot: n, id: id, gen: gen, pages: slices.Clone(m.table.Layout(id).Pages)}
	if n.State == SlotFilling {
		s.have = make([]bool, n.Size)
	}
	m.slots[id] = s
	m.place(s, n.State)
}

func (m *tableModel) commit(t *rapid.T) {
	s := m.pick(t, func(s *modelSlot) bool { return s.state == SlotPending || s.state == SlotFilling })
	if s == nil {
		return
	}
	free := m.key(s.Space, s.Name, SlotCommitted) == nil
	require.Equal(t, free, m.table.Commit(s.id))
	if free {
		s.have, s.Deadline = nil, 0
		m.place(s, SlotCommitted)
	}
}

func (m *tableModel) doom(s *modelSlot, cause DoomCause) {
	m.table.Doom(s.id, cause, m.now)
	if s.state != SlotDoomed {
		m.doomed[cause]++
		s.hold = 0
		m.place(s, SlotDoomed)
		m.reap(s)
	}
}

func (m *tableModel) hold(t *rapid.T) {
	s := m.pick(t, committed)
	if s == nil {
		return
	}
	until := m.now + Instant(rapid.IntRange(-1, 20).Draw(t, "for"))
	m.endHolds()
	held := m.pagesWhere(func(s *modelSlot) bool { return s.hold > m.now })
	want := until <= m.now || s.hold > 0 || held+s.n() <= m.cfg.MaxHeldPages
	require.Equal(t, want, m.table.Hold(s.id, until, m.now), "%d of %d pages are held", held, m.cfg.MaxHeldPages)
	if want && until > m.now {
		s.hold = max(s.hold, until)
	}
}

func (m *tableModel) endHolds() {
	for _, s := range m.slots {
		if s.hold <= m.now {
			s.hold = 0
		}
	}
}

func (m *tableModel) setSums(t *rapid.T) {
	s := m.pick(t, func(*modelSlot) bool { return true })
	if s == nil {
		return
	}
	part := rapid.Uint64Range(1, s.Size).Draw(t, "part")
	var lens []uint64
	for left := s.Size; left > 0; left -= min(left, part) {
		lens = append(lens, min(left, part))
	}
	var sums []uint32
	if rapid.Bool().Draw(t, "summed") {
		sums = rapid.SliceOfN(rapid.Uint32(), len(lens), len(lens)).Draw(t, "sums")
	}
	if rapid.IntRange(0, 4).Draw(t, "none") == 0 {
		lens, sums = nil, nil
	}
	m.table.SetSums(s.id, lens, sums)
	s.lens, s.sums = slices.Clone(lens), slices.Clone(sums)
	clear(lens) // the table keeps copies
	clear(sums)
}

// actions are all that may happen to a table.
func (m *tableModel) actions() map[string]func(*rapid.T) {
	on := func(pass func(*modelSlot) bool, do func(*rapid.T, *modelSlot)) func(*rapid.T) {
		return func(t *rapid.T) {
			if s := m.pick(t, pass); s != nil {
				do(t, s)
			}
		}
	}
	anySlot := func(*modelSlot) bool { return true }
	return map[string]func(*rapid.T){
		"reserve":       m.reserve,
		"reserve again": m.reserve, // weight
		"commit":        m.commit,
		"hold":          m.hold,
		"set sums":      m.setSums,
		"doom": on(anySlot, func(t *rapid.T, s *modelSlot) {
			m.doom(s, DoomCause(rapid.IntRange(0, int(NumDoomCauses)-1).Draw(t, "cause")))
		}),
		"pin": on(visible, func(t *rapid.T, s *modelSlot) {
			m.table.Pin(s.id)
			s.pins++
		}),
		"unpin": on(func(s *modelSlot) bool { return s.pins > 0 }, func(t *rapid.T, s *modelSlot) {
			m.table.Unpin(s.id, m.now)
			s.pins--
			m.reap(s)
		}),
		"touch": on(anySlot, func(t *rapid.T, s *modelSlot) {
			m.table.Touch(s.id)
			if s.state == SlotCommitted || s.state == SlotFilling {
				m.place(s, s.state)
			}
		}),
		"lease": on(committed, func(t *rapid.T, s *modelSlot) {
			until := m.now + Instant(rapid.IntRange(-1, 20).Draw(t, "for"))
			m.table.Lease(s.id, until)
			s.lease = max(s.lease, until)
		}),
		"grant": on(anySlot, func(t *rapid.T, s *modelSlot) {
			s.granted = rapid.Bool().Draw(t, "granted")
			m.table.SetGranted(s.id, s.granted, m.now)
			m.reap(s)
		}),
		"land": on(func(s *modelSlot) bool { return s.have != nil }, func(t *rapid.T, s *modelSlot) {
			off := rapid.Uint64Range(0, s.Size-1).Draw(t, "off")
			n := rapid.Uint64Range(1, s.Size-off).Draw(t, "n")
			m.table.Held(s.id).Add(Run{off, n})
			m.table.Claimed(s.id).Add(Run{off, n})
			for i := off; i < off+n; i++ {
				s.have[i] = true
			}
		}),
		"time": func(t *rapid.T) { m.now += Instant(rapid.IntRange(0, 10).Draw(t, "passes")) },
		"sweep": func(*rapid.T) {
			m.table.Sweep(m.now)
			m.endHolds()
			for _, s := range m.where(anySlot) {
				m.reap(s)
			}
		},
		"": m.check,
	}
}

// check compares everything that the table shows with the model.
func (m *tableModel) check(t *rapid.T) {
	require.NoError(t, m.table.CheckInvariants())
	m.checkStats(t)
	m.checkPlans(t)
	for id := range SlotID(len(m.counters) + 1) {
		if m.slots[id] == nil {
			require.Equal(t, SlotInfo{}, m.table.Info(id), "slot %d is free", id)
		}
	}
	for _, s := range m.slots {
		m.checkSlot(t, s)
	}
	for _, state := range []SlotState{SlotPending, SlotFilling, SlotCommitted, SlotDoomed} {
		var want []SlotID
		for _, s := range m.where(func(s *modelSlot) bool { return s.state == state }) {
			want = append(want, s.id)
		}
		require.ElementsMatch(t, want, m.table.AppendSlots(1<<state, nil), "slots that are %v", state)
	}
	var expired []SlotID
	for _, s := range m.where(func(s *modelSlot) bool {
		return s.state == SlotPending && s.Deadline != 0 && s.Deadline <= m.now
	}) {
		expired = append(expired, s.id)
	}
	require.ElementsMatch(t, expired, m.table.AppendExpired(m.now, nil))
}

func (m *tableModel) checkSlot(t *rapid.T, s *modelSlot) {
	require.Equal(t, SlotInfo{
		State: s.state, Origin: s.Origin, Granted: s.granted, Space: s.Space, Version: s.Version,
		Generation: s.gen, Size: s.Size, Pins: s.pins, LeaseUntil: s.lease, Deadline: s.Deadline,
	}, m.table.Info(s.id))
	require.Equal(t, s.Name, m.table.Name(s.id))
	require.Equal(t, Layout{s.pages, modelPageSize, s.Size}, m.table.Layout(s.id))
	lens, sums := m.table.Sums(s.id)
	require.Equal(t, [2]any{s.lens, s.sums}, [2]any{lens, sums})
	found := SlotID(0)
	if s.state == SlotCommitted {
		found = s.id
	}
	require.Equal(t, found, m.table.Find(s.gen))
	require.Zero(t, m.table.Find(Generation{8, s.gen.Counter}), "another incarnation")
	if s.state != SlotDoomed {
		c, f, p := m.table.Lookup(s.Space, s.Name)
		require.Equal(t, s.id, [...]SlotID{SlotPending: p, SlotFilling: f, SlotCommitted: c}[s.state])
	}
	require.Equal(t, s.have != nil, m.table.Held(s.id) != nil)
	for i, have := range s.have {
		byteI := Run{uint64(i), 1}
		if have != m.table.Held(s.id).Covers(byteI) || have != m.table.Claimed(s.id).Covers(byteI) {
			t.Fatalf("byte %d of slot %d: held and claimed should be %v", i, s.id, have)
		}
	}
}

func (m *tableModel) checkStats(t *rapid.T) {
	want := TableStats{PagesTotal: m.total, PagesFree: m.free(), Doomed: m.doomed}
	for _, s := range m.slots {
		want.Slots[s.state]++
		want.Pages[s.state] += s.n()
		want.Pins += uint64(s.pins)
		if s.hold != 0 {
			want.HeldPages += s.n()
		}
	}
	require.Equal(t, want, m.table.Stats())
}

// checkPlans asks for every plan: the order of all victims is the order of use.
func (m *tableModel) checkPlans(t *rapid.T) {
	var room [100]SlotID
	dst := append(room[:0], math.MaxUint32) // what is there stays
	victims, free := m.victims(), m.free()
	filling := m.pagesWhere(func(s *modelSlot) bool { return s.state == SlotFilling })
	for _, state := range []SlotState{SlotPending, SlotFilling} {
		for need := uint64(1); need <= m.total+1; need += 1 + need/4 {
			want, ok := m.planEviction(victims, free, filling, need, state)
			got, gotOK := m.table.PlanEviction(need, state, m.now, dst)
			if ok != gotOK || !slices.Equal(append(dst[:1:1], want...), got) {
				t.Fatalf("%d pages for a %v slot: %v, %v; want %v, %v", need, state, got[1:], gotOK, want, ok)
			}
		}
	}
	for low := uint64(0); low <= m.total+1; low += 1 + low/4 {
		want := append(dst[:1:1], m.planWatermark(victims, free, low)...)
		require.Equal(t, want, m.table.PlanWatermark(low, m.now, dst), "%d free", low)
	}
}

func TestTableAgreesWithMapsAndSlices(t *testing.T) {
	for _, scatter := range []bool{false, true} {
		t.Run(fmt.Sprintf("scatter=%v", scatter), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				m := newTableModel(scatter)
				for range rapid.IntRange(0, 40).Draw(t, "fill") { // most histories begin with a full medium
					m.reserve(t)
					m.commit(t)
				}
				for range rapid.IntRange(1, 4).Draw(t, "long") {
					t.Repeat(m.actions())
				}
			})
		})
	}
}
