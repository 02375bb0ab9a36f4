package grpcpeer

import (
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	peerv1 "github.com/spanpool/spanpool/proto/spanpool/peer/v1"
)

var update = flag.Bool("update", false, "write the golden messages anew: for a new message only, the old ones are what releases have sent")

// kind is one message of the protocol: how it is made of columns, and what its bytes are read as.
type kind struct {
	name  string
	out   func(t testing.TB) proto.Message
	empty func() proto.Message
	in    func(m proto.Message) (columns any, err error) // what a receiver makes of it
	due   any                                            // of the golden message
}

var (
	sampleEnds        = &peerv1.Ends{From: startOut(ports.Peer{ID: "asker", Incarnation: 7}), To: startOut(ports.Peer{ID: "owner", Incarnation: 1 << 63})}
	sampleKeys        = []ports.Key{{Space: 1, Name: "a key"}, {Space: 300, Name: "\xff\x00"}, {Space: 0, Name: strings.Repeat("k", domain.MaxKeyBytes)}}
	sampleVersions    = []domain.Version{{Hi: 1, Lo: 2}, {}, {Hi: ^uint64(0), Lo: 3}}
	sampleGenerations = []domain.Generation{{Incarnation: 1 << 63, Counter: 9}, {}, {Incarnation: 5, Counter: ^uint64(0)}}
	samplePages       = []domain.PageRef{{Buffer: 0, Page: 1}, {Buffer: 2, Page: ^uint32(0)}, {Buffer: 0, Page: 3}}
	sampleHello       = &ports.Hello{From: ports.Peer{ID: "asker", Incarnation: 7}, Protocol: 1, Features: 6, Namespaces: []string{"", "ns\xff"},
		Offers: []ports.Offer{{Kind: "rdma", Bytes: []byte{1, 0, 255}}, {Kind: "tcp"}}}
	sampleHelloReply = &ports.HelloReply{From: ports.Peer{ID: "owner", Incarnation: 8}, Protocol: 1, Features: 2, PageSize: 65536, Buffers: []uint64{1 << 40, 65536},
		Answers: []ports.Offer{{Kind: "tcp", Bytes: []byte("here")}}, Refused: []ports.Refusal{{Kind: "rdma", Reason: "no device"}}}
	sampleProbeReply = &ports.ProbeReply{Status: []ports.KeyStatus{ports.KeyHere, ports.KeyAbsent, ports.KeyRefused}, Versions: sampleVersions}
	sampleResolve    = &ports.ResolveRequest{Keys: sampleKeys, Versions: sampleVersions, Held: sampleGenerations, WantChecksums: true}
	sampleResolved   = &ports.ResolveReply{Status: []ports.KeyStatus{ports.KeyHere, ports.KeyStale, ports.KeyHere}, Versions: sampleVersions,
		Generations: sampleGenerations, Sizes: []uint64{65537, 0, 1 << 40}, LeaseNanos: []int64{5e8, 0, -1}, PageEnd: []uint32{2, 2, 3}, Pages: samplePages,
		LenEnd: []uint32{2, 2, 3}, PutLens: []uint64{65536, 1, 1 << 40}, SumEnd: []uint32{2, 2, 2}, Sums: []uint32{0, ^uint32(0)}}
	sampleReserve  = &ports.ReserveRequest{Via: "tcp", Keys: sampleKeys, Versions: sampleVersions, Sizes: []uint64{1, 1 << 40, 65536}}
	sampleReserved = &ports.ReserveReply{Status: []ports.ReserveStatus{ports.Reserved, ports.ReserveNoSpace, ports.ReserveRefused},
		Tokens: []ports.GrantToken{{1, 2}, {}, {63: 9}}, EndNanos: []int64{3e10, 0, 1}, PageEnd: []uint32{2, 2, 3}, Pages: samplePages}
	sampleCommit = &ports.CommitRequest{Keys: sampleKeys, Versions: sampleVersions, LenEnd: []uint32{2, 2, 3}, PutLens: []uint64{65536, 1, 1 << 40},
		SumEnd: []uint32{0, 0, 1}, Sums: []uint32{77}}
	sampleCommitted = []ports.CommitStatus{ports.CommitDone, ports.CommitExists, ports.CommitRefused}
	sampleRemoved   = []ports.KeyStatus{ports.KeyHere, ports.KeyAbsent, ports.KeyRefused}
)

type keysAndVersions struct {
	Keys     []ports.Key
	Versions []domain.Version
}

// must is for messages that are made of good columns.
func must[M proto.Message](m M, err error) proto.Message {
	if err != nil {
		panic(err)
	}
	return m
}

// reads adapts a reader of one type of message.
func reads[M proto.Message, C any](f func(M) (C, error)) func(proto.Message) (any, error) {
	return func(m proto.Message) (any, error) { return f(m.(M)) }
}

// fills adapts one that fills a reply.
func fills[M proto.Message, C any](f func(M, *C) error) func(proto.Message) (any, error) {
	return func(m proto.Message) (any, error) {
		out := new(C)
		err := f(m.(M), out)
		return out, err
	}
}

var kinds = []kind{
	{"hello_request", func(testing.TB) proto.Message { return must(helloOut(sampleEnds, sampleHello)) }, func() proto.Message { return &peerv1.HelloRequest{} },
		reads(func(m *peerv1.HelloRequest) (*ports.Hello, error) {
			return helloIn(startIn(m.GetEnds().GetFrom()), m), nil
		}), sampleHello},
	{"hello_reply", func(testing.TB) proto.Message { return helloReplyOut(sampleHelloReply) }, func() proto.Message { return &peerv1.HelloReply{} },
		fills(func(m *peerv1.HelloReply, out *ports.HelloReply) error { helloReplyIn(m, out); return nil }), sampleHelloReply},
	{"probe_request", func(testing.TB) proto.Message { return must(probeOut(sampleEnds, sampleKeys)) }, func() proto.Message { return &peerv1.ProbeRequest{} },
		reads(func(m *peerv1.ProbeRequest) ([]ports.Key, error) { return keysIn(m.GetKeys()) }), sampleKeys},
	{"probe_reply", func(testing.TB) proto.Message { return must(probeReplyOut(sampleProbeReply)) }, func() proto.Message { return &peerv1.ProbeReply{} },
		fills(probeReplyIn), sampleProbeReply},
	{"resolve_request", func(testing.TB) proto.Message { return must(resolveOut(sampleEnds, sampleResolve)) }, func() proto.Message { return &peerv1.ResolveRequest{} },
		reads(resolveIn), sampleResolve},
	{"resolve_reply", func(testing.TB) proto.Message { return must(resolveReplyOut(sampleResolved)) }, func() proto.Message { return &peerv1.ResolveReply{} },
		fills(resolveReplyIn), sampleResolved},
	{"complain_request", func(testing.TB) proto.Message { return must(complainOut(sampleEnds, sampleGenerations)) }, func() proto.Message { return &peerv1.ComplainRequest{} },
		reads(complainIn), sampleGenerations},
	{"reserve_request", func(testing.TB) proto.Message { return must(reserveOut(sampleEnds, sampleReserve)) }, func() proto.Message { return &peerv1.ReserveRequest{} },
		reads(reserveIn), sampleReserve},
	{"reserve_reply", func(testing.TB) proto.Message { return must(reserveReplyOut(sampleReserved)) }, func() proto.Message { return &peerv1.ReserveReply{} },
		fills(reserveReplyIn), sampleReserved},
	{"commit_request", func(testing.TB) proto.Message { return must(commitOut(sampleEnds, sampleCommit)) }, func() proto.Message { return &peerv1.CommitRequest{} },
		reads(commitIn), sampleCommit},
	{"commit_reply", func(testing.TB) proto.Message { return commitReplyOut(sampleCommitted) }, func() proto.Message { return &peerv1.CommitReply{} },
		fills(commitReplyIn), &sampleCommitted},
	{"abort_request", func(testing.TB) proto.Message { return must(abortOut(sampleEnds, sampleKeys, sampleVersions, true)) }, func() proto.Message { return &peerv1.AbortRequest{} },
		reads(func(m *peerv1.AbortRequest) (keysAndVersions, error) {
			keys, versions, err := abortIn(m)
			return keysAndVersions{keys, versions}, err
		}), keysAndVersions{sampleKeys, sampleVersions}},
	{"remove_request", func(testing.TB) proto.Message { return must(removeOut(sampleEnds, sampleKeys)) }, func() proto.Message { return &peerv1.RemoveRequest{} },
		reads(func(m *peerv1.RemoveRequest) ([]ports.Key, error) { return keysIn(m.GetKeys()) }), sampleKeys},
	{"remove_reply", func(testing.TB) proto.Message { return removeReplyOut(sampleRemoved) }, func() proto.Message { return &peerv1.RemoveReply{} },
		fills(removeReplyIn), &sampleRemoved},
	{"greeting", func(testing.TB) proto.Message { return sampleGreeting }, func() proto.Message { return &peerv1.Greeting{} },
		reads(func(m *peerv1.Greeting) (string, error) { return m.GetFrom().GetId() + m.GetToId(), checkGreeting(m) }), "askerowner"},
	{"challenge", func(testing.TB) proto.Message { return &peerv1.Challenge{Greeting: sampleGreeting, Reason: "why"} }, func() proto.Message { return &peerv1.Challenge{} },
		reads(func(m *peerv1.Challenge) (string, error) { return m.GetReason(), checkGreeting(m.GetGreeting()) }), "why"},
	{"proof", func(testing.TB) proto.Message { return &peerv1.Proof{Mac: []byte("mac")} }, func() proto.Message { return &peerv1.Proof{} },
		reads(func(m *peerv1.Proof) (string, error) { return string(m.GetMac()), nil }), "mac"},
	{"verdict", func(testing.TB) proto.Message { return &peerv1.Verdict{Mac: []byte("mac"), Reason: "why"} }, func() proto.Message { return &peerv1.Verdict{} },
		reads(func(m *peerv1.Verdict) (string, error) { return string(m.GetMac()) + m.GetReason(), nil }), "macwhy"},
	{"failure", func(testing.TB) proto.Message {
		return &peerv1.Failure{Classes: []peerv1.Class{peerv1.Class_CLASS_RESTARTED, peerv1.Class_CLASS_UNSUPPORTED}}
	}, func() proto.Message { return &peerv1.Failure{} },
		reads(func(m *peerv1.Failure) (int, error) { return len(classesOf(m)), nil }), 2},
}

var sampleGreeting = &peerv1.Greeting{Nonce: []byte("0123456789abcdef0123456789abcdef"), From: startOut(ports.Peer{ID: "asker", Incarnation: 7}), ToId: "owner"}

func goldenPath(name string) string { return filepath.Join("testdata", "golden", "v1", name+".hex") }

// TestMessagesOfTheFirstReleaseAreUnderstood reads bytes that were written when version 1 was made, and not by the code of today.
func TestMessagesOfTheFirstReleaseAreUnderstood(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			if *update {
				b, err := proto.MarshalOptions{Deterministic: true}.Marshal(k.out(t))
				require.NoError(t, err)
				require.NoError(t, os.MkdirAll(filepath.Dir(goldenPath(k.name)), 0o755))
				require.NoError(t, os.WriteFile(goldenPath(k.name), []byte(hex.EncodeToString(b)+"\n"), 0o644))
			}
			b := golden(t, k.name)
			m := k.empty()
			require.NoError(t, proto.Unmarshal(b, m))
			got, err := k.in(m)
			require.NoError(t, err)
			require.Equal(t, k.due, got)
			if e, ok := m.(call); ok {
				require.True(t, proto.Equal(sampleEnds, e.GetEnds()))
			}

			again, err := proto.MarshalOptions{Deterministic: true}.Marshal(k.out(t))
			require.NoError(t, err)
			require.Equal(t, hex.EncodeToString(b), hex.EncodeToString(again), "what is sent today is not what was sent then")
		})
	}
}

func golden(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(goldenPath(name))
	require.NoError(t, err)
	b, err := hex.DecodeString(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	return b
}

// TestFieldsOfALaterReleaseAreIgnored appends one to each golden message.
func TestFieldsOfALaterReleaseAreIgnored(t *testing.T) {
	for _, k := range kinds {
		b := protowire.AppendTag(golden(t, k.name), 1000, protowire.BytesType)
		b = protowire.AppendString(b, "of a later release")
		m := k.empty()
		require.NoError(t, proto.Unmarshal(b, m))
		got, err := k.in(m)
		require.NoError(t, err, k.name)
		require.Equal(t, k.due, got, k.name)
	}
}

func TestStatusesOfALaterReleaseCountAsRefused(t *testing.T) {
	for _, unknown := range []int32{-1, 0, 5, 8, 300} {
		var keys []ports.KeyStatus
		require.NoError(t, removeReplyIn(&peerv1.RemoveReply{Status: []peerv1.KeyStatus{peerv1.KeyStatus(unknown)}}, &keys))
		require.Equal(t, []ports.KeyStatus{ports.KeyRefused}, keys, "%d", unknown)
		var commits []ports.CommitStatus
		require.NoError(t, commitReplyIn(&peerv1.CommitReply{Status: []peerv1.CommitStatus{peerv1.CommitStatus(unknown)}}, &commits))
		require.Equal(t, []ports.CommitStatus{ports.CommitRefused}, commits, "%d", unknown)
		reserve := statusIn(nil, []peerv1.ReserveStatus{peerv1.ReserveStatus(unknown)}, ports.ReserveRefused)
		if unknown != 5 {
			require.Equal(t, []ports.ReserveStatus{ports.ReserveRefused}, reserve, "%d", unknown)
		}
	}
	require.Equal(t, ports.ReserveStatus(peerv1.ReserveStatus_RESERVE_STATUS_REFUSED-1), ports.ReserveRefused)
	require.Equal(t, ports.CommitStatus(peerv1.CommitStatus_COMMIT_STATUS_REFUSED-1), ports.CommitRefused)
	require.Equal(t, ports.KeyStatus(peerv1.KeyStatus_KEY_STATUS_REFUSED-1), ports.KeyRefused)
}

// TestColumnsThatContradictEachOtherAreRefused takes one entry from, or adds one to, each column of each golden message in turn.
func TestColumnsThatContradictEachOtherAreRefused(t *testing.T) {
	for _, k := range kinds {
		if strings.HasPrefix(k.name, "hello") {
			continue // its columns have nothing to do with each other
		}
		columns := 0
		forEachColumn(reflect.ValueOf(k.empty()), k, func(path string, spoil func(m proto.Message, longer bool)) {
			columns++
			for _, longer := range []bool{false, true} {
				m := k.empty()
				require.NoError(t, proto.Unmarshal(golden(t, k.name), m))
				spoil(m, longer)
				_, err := k.in(m)
				if alone := k.name == "commit_reply" || k.name == "remove_reply" || k.name == "failure"; alone {
					require.NoError(t, err, k.name)
				} else {
					require.ErrorIs(t, err, domain.ErrInvalid, "%s: %s, longer: %v", k.name, path, longer)
				}
			}
		})
		if strings.HasSuffix(k.name, "_request") || strings.HasSuffix(k.name, "_reply") {
			require.NotZero(t, columns, k.name)
		}
	}
}

// forEachColumn finds the slices of a message and of the messages in it.
func forEachColumn(v reflect.Value, k kind, found func(path string, spoil func(m proto.Message, longer bool))) {
	var walk func(typ reflect.Type, path []int, name string)
	walk = func(typ reflect.Type, path []int, name string) {
		for i := range typ.NumField() {
			f := typ.Field(i)
			if !f.IsExported() || f.Name == "Ends" {
				continue
			}
			at := append(append([]int(nil), path...), i)
			switch {
			case f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() != reflect.Uint8 && f.Type.Elem().Kind() != reflect.Pointer:
				found(name+f.Name, func(m proto.Message, longer bool) { spoilColumn(reflect.ValueOf(m), at, longer) })
			case f.Type.Kind() == reflect.Pointer && f.Type.Elem().Kind() == reflect.Struct:
				walk(f.Type.Elem(), at, name+f.Name+".")
			}
		}
	}
	walk(v.Type().Elem(), nil, k.name+".")
}

func spoilColumn(m reflect.Value, path []int, longer bool) {
	v := m.Elem()
	for _, i := range path[:len(path)-1] {
		v = v.Field(i).Elem()
	}
	column := v.Field(path[len(path)-1])
	if longer {
		last := column.Index(column.Len() - 1)
		column.Set(reflect.Append(column, last))
	} else {
		column.Set(column.Slice(0, column.Len()-1))
	}
}

// TestPartsJoinToTheWhole cuts messages into parts of any size, crosses the wire with each, and joins them.
func TestPartsJoinToTheWhole(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		room := rapid.IntRange(varint64, 300).Draw(r, "bytes of a part")
		for _, k := range kinds {
			next := nextPart(k.out(t))
			if next == nil {
				continue
			}
			due := k.out(t)
			joined := joinParts(r, room, next)
			require.True(r, proto.Equal(normal(r, k, due), normal(r, k, joined)), "%s in parts of %d bytes", k.name, room)
		}
	})
}

// normal is a message as one blob has it: parts of a blob say the same in more pieces.
func normal(r *rapid.T, k kind, m proto.Message) proto.Message {
	switch m := m.(type) {
	case interface{ GetKeys() *peerv1.Keys }:
		if m.GetKeys() != nil {
			m.GetKeys().Names = [][]byte{joined(m.GetKeys().GetNames())}
		}
	case *peerv1.ReserveReply:
		m.Tokens = [][]byte{joined(m.Tokens)}
	}
	_, err := k.in(m)
	require.NoError(r, err, k.name)
	return m
}

// nextPart is the cutter of a message, nil for what is never cut.
func nextPart(m proto.Message) func(c *cut, first bool) proto.Message {
	switch m := m.(type) {
	case *peerv1.HelloRequest:
		return generic(cutHello(m))
	case *peerv1.HelloReply:
		return generic(cutHelloReply(m))
	case *peerv1.ProbeRequest:
		return generic(cutProbe(m))
	case *peerv1.ProbeReply:
		return generic(cutProbeReply(m))
	case *peerv1.ResolveRequest:
		return generic(cutResolve(m))
	case *peerv1.ResolveReply:
		return generic(cutResolveReply(m))
	case *peerv1.ComplainRequest:
		return generic(cutComplain(m))
	case *peerv1.ReserveRequest:
		return generic(cutReserve(m))
	case *peerv1.ReserveReply:
		return generic(cutReserveReply(m))
	case *peerv1.CommitRequest:
		return generic(cutCommit(m))
	case *peerv1.CommitReply:
		return generic(cutCommitReply(m))
	case *peerv1.AbortRequest:
		return generic(cutAbort(m))
	case *peerv1.RemoveRequest:
		return generic(cutRemove(m))
	case *peerv1.RemoveReply:
		return generic(cutRemoveReply(m))
	}
	return nil
}

func generic[M proto.Message](next func(*cut, bool) M) func(*cut, bool) proto.Message {
	return func(c *cut, first bool) proto.Message { return next(c, first) }
}

func joinParts(r *rapid.T, room int, next func(*cut, bool) proto.Message) proto.Message {
	var all whole[proto.Message]
	for {
		c := &cut{room: room}
		part := next(c, all.parts == 0)
		b, err := proto.Marshal(part)
		require.NoError(r, err)
		received := part.ProtoReflect().New().Interface()
		require.NoError(r, proto.Unmarshal(b, received))
		require.NoError(r, all.add(received, defaultMaxCallBytes))
		if !c.rest {
			return all.message
		}
		require.Less(r, all.parts, 10_000, "parts make no progress")
	}
}

// FuzzMessages reads any bytes as every message: an error, or columns that are as long as each other and that say the same when
// they are sent on.
func FuzzMessages(f *testing.F) {
	for i, k := range kinds {
		f.Add(uint8(i), golden(f, k.name))
	}
	f.Fuzz(func(t *testing.T, which uint8, b []byte) {
		k := kinds[int(which)%len(kinds)]
		m := k.empty()
		if proto.Unmarshal(b, m) != nil {
			return
		}
		columns, err := k.in(m)
		if err != nil {
			return
		}
		again := sendOn(t, columns)
		if again == nil {
			return
		}
		back, err := k.in(again)
		require.NoError(t, err)
		require.True(t, sameColumns(columns, back), "%s: %+v, sent on: %+v", k.name, columns, back)
	})
}

// sendOn makes a message of what was read, which must be good.
func sendOn(t *testing.T, columns any) proto.Message {
	switch c := columns.(type) {
	case *ports.ProbeReply:
		return must(probeReplyOut(c))
	case *ports.ResolveRequest:
		return must(resolveOut(sampleEnds, c))
	case *ports.ResolveReply:
		return must(resolveReplyOut(c))
	case []domain.Generation:
		return must(complainOut(sampleEnds, c))
	case *ports.ReserveRequest:
		return must(reserveOut(sampleEnds, c))
	case *ports.ReserveReply:
		return must(reserveReplyOut(c))
	case *ports.CommitRequest:
		return must(commitOut(sampleEnds, c))
	case *[]ports.CommitStatus:
		return commitReplyOut(*c)
	case *[]ports.KeyStatus:
		return removeReplyOut(*c)
	case keysAndVersions:
		return must(abortOut(sampleEnds, c.Keys, c.Versions, false))
	case []ports.Key:
		m := must(probeOut(sampleEnds, c)).(*peerv1.ProbeRequest)
		keys, err := keysIn(m.GetKeys())
		require.NoError(t, err)
		require.True(t, sameColumns(c, keys))
	}
	return nil
}

// sameColumns compares columns; an empty one is one like another.
func sameColumns(a, b any) bool {
	return reflect.DeepEqual(emptied(reflect.ValueOf(a)), emptied(reflect.ValueOf(b)))
}

func emptied(v reflect.Value) any {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if v.Kind() == reflect.Slice && v.Len() == 0 {
		return nil
	}
	if v.Kind() != reflect.Struct {
		return v.Interface()
	}
	var fields []any
	for _, field := range v.Fields() {
		fields = append(fields, emptied(field))
	}
	return fields
}
