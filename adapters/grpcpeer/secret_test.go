package grpcpeer

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest"
	peerv1 "github.com/spanpool/spanpool/proto/spanpool/peer/v1"
)

var aKey = []ports.Key{{Space: 1, Name: "k"}}

func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestNodesThatDoNotShareASecretDoNotTalk(t *testing.T) {
	other := []byte("another secret")
	for _, c := range []struct {
		name         string
		asker, owner []byte
		says         string
		unproven     bool // the owner counts it
	}{
		{"another secret", other, testSecret, "another secret", true},
		{"a prefix of it", testSecret[:31], testSecret, "another secret", true},
		{"the asker has none", nil, testSecret, "wants the shared secret proven", true},
		{"the owner has none", testSecret, nil, "this node has no shared secret", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			srv := &porttest.FakeServer{}
			n := listen(t, "127.0.0.1:0", testConfig("owner", 2, c.owner), srv)
			client := newClient(t, testConfig("asker", 1, c.asker, Member{"owner", n.addr}))
			for range 2 { // the second within the back-off of the first
				err := client.Probe(bounded(t), n.self, aKey, &ports.ProbeReply{})
				require.ErrorIs(t, err, ErrSecret)
				require.ErrorIs(t, err, ports.ErrPeer)
				require.ErrorContains(t, err, "owner")
				require.ErrorContains(t, err, c.says)
				var op *OpError
				require.ErrorAs(t, err, &op)
				require.Equal(t, ports.PeerID("owner"), op.Peer)
			}
			require.Empty(t, srv.TakeCalls())
			require.Equal(t, c.unproven, n.server.Counts().Unproven > 0)
		})
	}
}

// TestAnOwnerThatDoesNotKnowTheSecretIsNotBelieved has one that accepts whatever the asker proves.
func TestAnOwnerThatDoesNotKnowTheSecretIsNotBelieved(t *testing.T) {
	for name, mac := range map[string]func(t transcript) []byte{
		"no proof":               func(transcript) []byte { return nil },
		"another secret's":       func(t transcript) []byte { return t.mac([]byte("guess"), ownerRole) },
		"the asker's, sent back": func(t transcript) []byte { return t.mac(testSecret, askerRole) },
	} {
		t.Run(name, func(t *testing.T) {
			asker, owner := net.Pipe()
			defer asker.Close()
			defer owner.Close()
			go func() {
				tr := transcript{asker: &peerv1.Greeting{}, owner: greeting(ports.Peer{ID: "owner", Incarnation: 2}, "")}
				_, _ = io.ReadFull(owner, make([]byte, len(preamble)))
				_ = readFrame(owner, tr.asker)
				_ = writeFrame(owner, &peerv1.Challenge{Greeting: tr.owner})
				_ = readFrame(owner, &peerv1.Proof{})
				_ = writeFrame(owner, &peerv1.Verdict{Mac: mac(tr)})
			}()
			err := prove(asker, testSecret, ports.Peer{ID: "asker", Incarnation: 1}, "owner")
			require.ErrorIs(t, err, ErrSecret)
			require.ErrorContains(t, err, "does not hold")
		})
	}
}

// recorder keeps what one side of a connection wrote.
type recorder struct {
	net.Conn
	mu  sync.Mutex
	all bytes.Buffer
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	r.all.Write(p)
	r.mu.Unlock()
	return r.Conn.Write(p)
}

func TestARecordedProofIsOfNoUseAndHoldsNoSecret(t *testing.T) {
	owner, asker := ports.Peer{ID: "owner", Incarnation: 2}, ports.Peer{ID: "asker", Incarnation: 1}
	a, o := net.Pipe()
	ra, ro := &recorder{Conn: a}, &recorder{Conn: o}
	from := make(chan ports.Peer, 1)
	serveOne := func(conn io.ReadWriter) error {
		_, err := io.ReadFull(conn, make([]byte, len(preamble)))
		if err != nil {
			return err
		}
		who, err := verify(conn, testSecret, owner)
		from <- who
		return err
	}
	failed := make(chan error, 1)
	go func() { failed <- serveOne(ro) }()
	require.NoError(t, prove(ra, testSecret, asker, "owner"))
	require.NoError(t, <-failed)
	require.Equal(t, asker, <-from)
	said := append(ra.all.Bytes(), ro.all.Bytes()...)
	require.NotContains(t, string(said), string(testSecret))
	require.NotContains(t, string(said), string(testSecret[:8]))

	b, p := net.Pipe()
	defer b.Close()
	go func() { failed <- serveOne(p); _ = p.Close() }()
	go func() { _, _ = io.Copy(io.Discard, b) }()
	_, _ = b.Write(ra.all.Bytes()) // what the asker said before, to another nonce
	require.ErrorIs(t, <-failed, ErrSecret)
	<-from
}

func TestTheProofCoversWhatBothEndsSaid(t *testing.T) {
	fresh := func() transcript {
		return transcript{asker: greeting(ports.Peer{ID: "asker", Incarnation: 1}, "owner"), owner: greeting(ports.Peer{ID: "owner", Incarnation: 2}, "")}
	}
	base := fresh()
	mac := base.mac(testSecret, askerRole)
	require.True(t, base.proves(testSecret, askerRole, mac))
	require.False(t, base.proves(testSecret, ownerRole, mac))
	for name, change := range map[string]func(t *transcript){
		"asker's nonce":       func(t *transcript) { t.asker.Nonce[31] ^= 1 },
		"owner's nonce":       func(t *transcript) { t.owner.Nonce[0] ^= 1 },
		"asker's id":          func(t *transcript) { t.asker.From.Id = "askex" },
		"owner's id":          func(t *transcript) { t.owner.From.Id = "ownex" },
		"asker's incarnation": func(t *transcript) { t.asker.From.Incarnation++ },
		"owner's incarnation": func(t *transcript) { t.owner.From.Incarnation++ },
		"whom it wants":       func(t *transcript) { t.asker.ToId = "other" },
		"the border of two":   func(t *transcript) { t.owner.From.Id, t.asker.ToId = "wner", "ownero" },
	} {
		other := transcript{asker: proto.Clone(base.asker).(*peerv1.Greeting), owner: proto.Clone(base.owner).(*peerv1.Greeting)}
		change(&other)
		require.False(t, other.proves(testSecret, askerRole, mac), name)
	}
}

// TestACallAsAnotherThanWasProvenIsRefused has a node of the pool speak for another.
func TestACallAsAnotherThanWasProvenIsRefused(t *testing.T) {
	srv := &porttest.FakeServer{}
	n := listen(t, "127.0.0.1:0", testConfig("owner", 2, testSecret), srv)
	c := newClient(t, testConfig("asker", 1, testSecret, Member{"owner", n.addr}))
	require.NoError(t, c.Probe(bounded(t), n.self, aKey, &ports.ProbeReply{}))
	require.Len(t, srv.TakeCalls(), 1)
	for _, liar := range []ports.Peer{{ID: "another", Incarnation: 1}, {ID: "asker", Incarnation: 9}} {
		c.cfg.Self = liar // the connection was made by the asker
		err := c.Probe(bounded(t), n.self, aKey, &ports.ProbeReply{})
		require.ErrorIs(t, err, ErrSecret, "%v", liar)
		require.ErrorIs(t, err, ports.ErrPeer, "%v", liar)
	}
	require.Empty(t, srv.TakeCalls())
	require.EqualValues(t, 2, n.server.Counts().Strangers)
}

func TestAnyoneMayAskForHealthAndForNothingElse(t *testing.T) {
	srv := &porttest.FakeServer{}
	n := listen(t, "127.0.0.1:0", testConfig("owner", 2, testSecret), srv)
	cc, err := grpc.NewClient(n.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer cc.Close()
	for _, serving := range []bool{true, false, true} {
		n.server.SetServing(serving)
		h, err := healthv1.NewHealthClient(cc).Check(bounded(t), &healthv1.HealthCheckRequest{})
		require.NoError(t, err)
		require.Equal(t, serving, h.GetStatus() == healthv1.HealthCheckResponse_SERVING)
	}
	st, err := peerv1.NewPeerClient(cc).Remove(bounded(t))
	require.NoError(t, err)
	_ = st.Send(&peerv1.RemoveRequest{Ends: &peerv1.Ends{From: startOut(ports.Peer{ID: "asker", Incarnation: 1}), To: startOut(n.self)}})
	_ = st.CloseSend()
	_, err = st.Recv()
	require.Equal(t, codes.Unauthenticated, status.Code(err), "%v", err)
	require.Empty(t, srv.TakeCalls())
}

func TestAnotherNodeAtTheAddressIsNotThePeer(t *testing.T) {
	for name, secret := range map[string][]byte{"secret=no": nil, "secret=yes": testSecret} {
		t.Run(name, func(t *testing.T) {
			srv := &porttest.FakeServer{}
			n := listen(t, "127.0.0.1:0", testConfig("somebody", 2, secret), srv)
			c := newClient(t, testConfig("asker", 1, secret, Member{"owner", n.addr}))
			err := c.Hello(bounded(t), ports.Peer{ID: "owner"}, &ports.Hello{From: c.cfg.Self}, &ports.HelloReply{})
			require.ErrorIs(t, err, ports.ErrPeer)
			require.NotErrorIs(t, err, ports.ErrRestarted)
			require.ErrorContains(t, err, "somebody")
			require.Empty(t, srv.TakeCalls())
		})
	}
}

// FuzzHandshake gives both sides of the proof any bytes: an error, and no proof.
// TestStrangersDoNotKeepPeersOut: whoever has not proven the secret may ask for health, on a part of the connections only.
func TestStrangersDoNotKeepPeersOut(t *testing.T) {
	cfg := testConfig("owner", 2, testSecret)
	cfg.MaxConns = 8
	n := listen(t, "127.0.0.1:0", cfg, &porttest.FakeServer{})
	greet := func() (conn net.Conn, welcome bool) {
		conn, err := net.Dial("tcp", n.addr)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
		_, err = io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
		require.NoError(t, err)
		_, err = conn.Read(make([]byte, 1))
		return conn, err == nil
	}
	var stay []net.Conn
	for range 3 * cfg.MaxConns {
		if conn, welcome := greet(); welcome {
			stay = append(stay, conn)
		}
	}
	require.Len(t, stay, cfg.MaxConns/strangersShare)
	require.EqualValues(t, 3*cfg.MaxConns-len(stay), n.server.Counts().Crowded)
	peer := newClient(t, testConfig("asker", 1, testSecret, Member{"owner", n.addr}))
	require.NoError(t, peer.Probe(bounded(t), n.self, aKey, &ports.ProbeReply{}))
	require.NoError(t, stay[0].Close())
	require.Eventually(t, func() bool { _, welcome := greet(); return welcome }, 10*time.Second, 10*time.Millisecond, "one that left makes room")
}

func FuzzHandshake(f *testing.F) {
	var b bytes.Buffer
	require.NoError(f, writeFrame(&b, sampleGreeting))
	f.Add(b.Bytes())
	b.Reset()
	require.NoError(f, writeFrame(&b, &peerv1.Challenge{Greeting: greeting(ports.Peer{ID: "owner", Incarnation: 2}, "")}))
	require.NoError(f, writeFrame(&b, &peerv1.Verdict{Mac: make([]byte, 32)}))
	f.Add(b.Bytes())
	f.Add([]byte{0xff, 0xff})
	f.Fuzz(func(t *testing.T, in []byte) {
		_, err := verify(said{bytes.NewReader(in)}, testSecret, ports.Peer{ID: "owner", Incarnation: 2})
		require.Error(t, err)
		require.Error(t, prove(said{bytes.NewReader(in)}, testSecret, ports.Peer{ID: "asker", Incarnation: 1}, "owner"))
	})
}

// said is a connection whose other end has said something and listens to nothing.
type said struct{ io.Reader }

func (said) Write(p []byte) (int, error) { return len(p), nil }

func TestConfigurationsThatCannotWorkAreRefused(t *testing.T) {
	good := Config{Self: ports.Peer{ID: "a", Incarnation: 1}, Secret: testSecret}
	for name, c := range map[string]struct {
		change func(c *Config)
		says   string
	}{
		"no id":              {func(c *Config) { c.Self.ID = "" }, "own id: empty"},
		"long id":            {func(c *Config) { c.Self.ID = ports.PeerID(make([]byte, 256)) }, "256, limit 255"},
		"id no text":         {func(c *Config) { c.Self.ID = "\xff" }, `"\xff" is not UTF-8`},
		"no incarnation":     {func(c *Config) { c.Self.Incarnation = 0 }, "incarnation is 0"},
		"no secret":          {func(c *Config) { c.Secret = nil }, "no shared secret"},
		"secret and without": {func(c *Config) { c.Insecure = true }, "told to do without"},
		"negative timeout":   {func(c *Config) { c.DialTimeout = -1 }, "negative"},
		"no port":            {func(c *Config) { c.Peers = []Member{{"b", "host"}} }, `"host" is not host:port`},
		"bare IPv6":          {func(c *Config) { c.Peers = []Member{{"b", "::1"}} }, `"::1" is not host:port`},
		"twice":              {func(c *Config) { c.Peers = []Member{{"b", "h:1"}, {"b", "h:2"}} }, "peer b is there twice"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := good
			c.change(&cfg)
			_, err := NewClient(cfg)
			require.ErrorIs(t, err, domain.ErrInvalid)
			require.ErrorContains(t, err, c.says)
		})
	}
	_, err := NewServer(Config{}, &porttest.FakeServer{})
	require.ErrorIs(t, err, domain.ErrInvalid)
}
