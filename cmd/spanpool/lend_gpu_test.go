//go:build gpu && linux && cgo

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/spanpool/spanpool/adapters/dram"
	"github.com/spanpool/spanpool/adapters/hip"
	"github.com/spanpool/spanpool/adapters/hip/fakehip"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
)

// lentElsewhere has another process lend memory of a device until the test ends, and gives its handle.
func lentElsewhere(t *testing.T) hip.Handle {
	t.Helper()
	cmd := exec.Command(os.Args[0], "doctor", "gpu", "--lend", "--gpu-library", fakeGPU(t, fakehip.Options{}).Path)
	cmd.Env = append(os.Environ(), lenderVariable+"=1")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, stdin.Close())
		require.NoError(t, cmd.Wait())
	})
	var b []byte
	_, err = fmt.Fscanf(stdout, "%x\n", &b)
	require.NoError(t, err)
	return hip.Handle(b)
}

// lentBytes reads what lies there, by a runtime of its own.
func lentBytes(t *testing.T, h hip.Handle, n uint64) []byte {
	t.Helper()
	r, err := hip.Open(hip.Config{Library: fakeGPU(t, fakehip.Options{}).Path, Host: dram.NewCopier()})
	require.NoError(t, err)
	in := r.Imports()
	at, err := in.Import("test", 0, h, n)
	require.NoError(t, err)
	b, errs := make([]byte, n), make([]error, 1)
	r.Copier().Copy(t.Context(), []ports.CopyOp{{Dst: ports.HostRegionOf(b), Src: at, Len: n}}, errs)
	require.NoError(t, errs[0])
	require.NoError(t, in.Close())
	require.NoError(t, r.Close())
	return b
}

// TestAClientsDeviceMemoryIsReadIntoAndTriedWithTheNIC: what another process lends a daemon gets the bytes that it asks for and no others;
// the verdict on it and the NIC, of which there is none, stands in status; and it is closed with its client.
func TestAClientsDeviceMemoryIsReadIntoAndTriedWithTheNIC(t *testing.T) {
	for _, medium := range []string{"dram", "hbm"} {
		t.Run(medium, func(t *testing.T) {
			lib := fakeGPU(t, fakehip.Options{})
			h := lentElsewhere(t)
			socket := serveInProcess(t, "--medium", medium, "--gpu-clients", "true", "--gpu-library", lib.Path, "--gpu-reserve-bytes", "1MiB")
			object := make([]byte, 20_000)
			content.Fill(object, 3, 0)
			file := filepath.Join(t.TempDir(), "object")
			require.NoError(t, os.WriteFile(file, object, 0o600))
			o := invoke(t, "ctl", "put", "k", file, "--socket", socket, "--namespace", "ns")
			require.Equal(t, exitOK, o.code, "%s", o.stderr)

			conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
			require.NoError(t, err)
			t.Cleanup(func() { _ = conn.Close() })
			rpc := enginev1.NewEngineClient(conn)
			hi, err := rpc.Hello(t.Context(), &enginev1.HelloRequest{Protocol: 1, Namespace: []byte("ns"), Name: "test"})
			require.NoError(t, err)
			end := attachTo(t, socket, hi)
			caller := func(n uint64) *enginev1.Caller {
				return &enginev1.Caller{Boot: hi.GetBoot(), Client: hi.GetClient(), Call: n}
			}
			lent, err := rpc.RegisterDevice(t.Context(), &enginev1.RegisterDeviceRequest{Caller: caller(1), IpcHandle: h[:], Device: "0000:01:00.0", Off: 4096, Len: 30_000})
			require.NoError(t, err)
			reply, err := rpc.BatchGetRanges(t.Context(), &enginev1.BatchGetRangesRequest{Caller: caller(2), Parts: []*enginev1.Part{{
				Keys: &enginev1.Keys{Names: [][]byte{[]byte("k")}},
				Where: &enginev1.Part_Lists{Lists: &enginev1.RangeLists{End: []uint32{1}, Off: []uint64{1_000}, Len: []uint64{10_000},
					Region: []uint32{lent.GetRegion().GetRegion()}, RegionOff: []uint64{500}}}}}})
			require.NoError(t, err)
			require.Equal(t, []enginev1.KeyStatus{enginev1.KeyStatus_KEY_STATUS_HIT}, reply.GetStatus())
			got := lentBytes(t, h, tried)
			require.Equal(t, -1, content.Check(got[4096+500:][:10_000], 3, 1_000))
			require.Equal(t, make([]byte, 4096+500), got[:4096+500], "before it nothing is written")
			require.Equal(t, make([]byte, tried-4096-10_500), got[4096+10_500:], "nor behind it")

			o = invoke(t, "ctl", "status", "--socket", socket)
			require.Contains(t, o.stdout, "gpu: a NIC takes memory lent on device 0 (0000:01:00.0): no: it can be exported, but no rdma device is configured")
			end()
			require.Eventually(t, func() bool { return lib.Imported.Load() == 0 }, 10*time.Second, time.Millisecond, "it is not closed with its client")
		})
	}
}

// serveInProcess runs a node until the test ends, and returns its socket.
func serveInProcess(t *testing.T, args ...string) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	ended := make(chan outcome, 1) // the node's end, which may come before anybody waits for it
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	go func() {
		var stderr strings.Builder
		code := run(ctx, append([]string{"serve", "--node-id", "a", "--listen", "127.0.0.1:0", "--data-listen", "127.0.0.1:0", "--http", "off", "--transport", "tcp",
			"--dram-bytes", "1MiB", "--arena-get-bytes", "64KiB", "--arena-put-bytes", "64KiB", "--socket", socket}, args...), io.Discard, &stderr,
			environment{cores: 2, raiseProc: func(int) {}})
		ended <- outcome{code: code, stderr: stderr.String()}
	}()
	t.Cleanup(func() {
		stop()
		o := <-ended
		require.Equal(t, exitOK, o.code, "%s", o.stderr)
	})
	require.Eventually(t, func() bool { return invoke(t, "ctl", "status", "--socket", socket).code == exitOK }, 20*time.Second, 10*time.Millisecond)
	return socket
}

// attachTo opens the connection with which a client lives.
func attachTo(t *testing.T, socket string, hi *enginev1.HelloReply) (end func()) {
	t.Helper()
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket + ".fd", Net: "unixpacket"})
	require.NoError(t, err)
	require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	b, err := proto.Marshal(&enginev1.DescriptorRequest{Request: &enginev1.DescriptorRequest_Attach{Attach: &enginev1.Attach{Boot: hi.GetBoot(), Client: hi.GetClient()}}})
	require.NoError(t, err)
	_, err = conn.Write(b)
	require.NoError(t, err)
	in := make([]byte, 4096)
	n, err := conn.Read(in)
	require.NoError(t, err)
	var reply enginev1.DescriptorReply
	require.NoError(t, proto.Unmarshal(in[:n], &reply))
	require.Zero(t, reply.GetCode(), reply.GetReason())
	return func() { require.NoError(t, conn.Close()) }
}
