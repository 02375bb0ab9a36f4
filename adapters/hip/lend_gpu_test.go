//go:build gpu && linux && cgo

package hip

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/adapters/hip/fakehip"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

// lenderVariable has this test binary be another process with device memory: the library that it opens. It prints a handle, and lives
// until its standard input ends.
const lenderVariable = "SPANPOOL_E2E_LENDER"

const (
	lentBytes = 64 << 10
	lentKey   = 77
)

func lend() {
	r, err := Open(Config{Library: os.Getenv(lenderVariable), Host: goCopier{}})
	if err != nil {
		panic(err)
	}
	m, err := r.OpenMedium(MediumConfig{Bytes: lentBytes, PageSize: lentBytes})
	if err != nil {
		panic(err)
	}
	region := m.Buffers()[0].(ports.DeviceRegion)
	b := make([]byte, lentBytes)
	content.Fill(b, lentKey, 0)
	past(r.devices[0], region, 0, b, 1)
	h, err := r.Handle(region)
	if err != nil {
		panic(err)
	}
	fmt.Println(hex.EncodeToString(h[:]))
	_, _ = io.Copy(io.Discard, os.Stdin) // until the parent has enough of it
}

// lender is another process with device memory.
type lender struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	handle Handle
}

// startLender has a library of its own build, so that the parent's counts are the parent's.
func startLender(t *testing.T, o fakehip.Options) *lender {
	t.Helper()
	lib := fake(t, o)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), lenderVariable+"="+lib.Path)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	l := &lender{cmd: cmd, stdin: stdin}
	timer := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
	t.Cleanup(func() {
		timer.Stop()
		l.die()
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	n, err := hex.Decode(l.handle[:], []byte(line[:len(line)-1]))
	require.NoError(t, err)
	require.Equal(t, len(l.handle), n)
	return l
}

// die kills the process. Twice is allowed.
func (l *lender) die() {
	_ = l.cmd.Process.Kill()
	_ = l.cmd.Wait()
}

func TestMemoryOfAnotherProcessIsReadAndWritten(t *testing.T) {
	for name, o := range map[string]fakehip.Options{"rocm7": {}, "rocm5": {Version: fakehip.ROCm5, WithoutBatch: true, WithoutDMABuf: true}, "cuda": {CUDA: true, WithoutDMABuf: true},
		"cuda13": {CUDA: true, WithoutDMABuf: true, Version: fakehip.CUDA13}} {
		t.Run(name, func(t *testing.T) {
			l := startLender(t, o)
			lib := fake(t, o)
			r := open(t, lib, nil)
			in := r.Imports()
			region, err := in.Import("engine", 0, l.handle, lentBytes)
			require.NoError(t, err)
			require.Equal(t, 0, region.Ordinal())
			again, err := in.Import("engine 2", 0, l.handle, 4096)
			require.NoError(t, err)
			require.True(t, region.Overlaps(again))
			require.EqualValues(t, 1, lib.Imported.Load(), "a handle is opened once")

			dst := poisoned(lentBytes)
			require.NoError(t, copyAll(t, r.Copier(), ports.CopyOp{Dst: dst, Src: region, Len: lentBytes})[0])
			require.Equal(t, -1, content.Check(dst.Bytes(), lentKey, 0))
			slot := deviceMemory(r, 1).New(t, 4096)
			errs := copyAll(t, r.Copier(), ports.CopyOp{Dst: region, DstOff: 100, Src: filled(50, 8), Len: 50}, ports.CopyOp{Dst: slot, Src: region, SrcOff: 4096, Len: 4096})
			require.Equal(t, []error{nil, nil}, errs)
			require.NoError(t, copyAll(t, r.Copier(), ports.CopyOp{Dst: dst, Src: region, Len: lentBytes})[0])
			require.Equal(t, -1, content.Check(dst.Bytes()[100:150], 8, 0))

			require.NoError(t, in.Return("engine", 0, l.handle))
			require.ErrorIs(t, in.Return("engine", 0, l.handle), ports.ErrNotFound)
			require.EqualValues(t, 1, lib.Imported.Load(), "the other one has it still")
			require.NoError(t, in.CloseOwner("engine 2"))
			require.NoError(t, in.CloseOwner("engine 2"))
			require.Zero(t, lib.Imported.Load())
			require.Zero(t, in.Len())

			report, err := r.Report()
			require.NoError(t, err)
			verdict := report.Devices[0].Import
			require.True(t, verdict.Tried)
			require.Equal(t, verdict, r.ImportVerdict(0))
			require.Len(t, r.Notes(), 1, "what was found is told")
			require.Contains(t, r.Notes()[0], "device 0 (0000:01:00.0): no: ")
			require.Equal(t, o.WithoutDMABuf, errors.Is(verdict.Err, errors.ErrUnsupported), "%v", verdict)
			require.Equal(t, !o.WithoutDMABuf, errors.Is(verdict.Err, errNoNIC), "%v", verdict)
			require.False(t, report.Devices[1].Import.Tried)
			require.False(t, r.ImportVerdict(2).Tried)
		})
	}
}

// TestPartsOfAnAllocationAreLentInAnyOrder, as an allocator with a cache names them: the runtime of CUDA does not tell how large it is.
func TestPartsOfAnAllocationAreLentInAnyOrder(t *testing.T) {
	for name, o := range map[string]fakehip.Options{"rocm7": {}, "cuda": {CUDA: true}} {
		t.Run(name, func(t *testing.T) {
			l := startLender(t, o)
			lib := fake(t, o)
			r := open(t, lib, nil)
			in := r.Imports()
			for _, off := range []uint64{4096, 0, 32768} {
				region, release, err := in.Lend("0000:01:00.0", l.handle[:], off, 4096)
				require.NoError(t, err)
				dst := poisoned(4096)
				require.NoError(t, copyAll(t, r.Copier(), ports.CopyOp{Dst: dst, Src: region, Len: 4096})[0])
				require.Equal(t, -1, content.Check(dst.Bytes(), lentKey, off))
				defer func() { require.NoError(t, release()) }()
			}
			require.EqualValues(t, 1, lib.Imported.Load())
		})
	}
}

// TestMemoryIsLentByPCIAddressAndOffset, as a client of the daemon does.
func TestMemoryIsLentByPCIAddressAndOffset(t *testing.T) {
	l := startLender(t, fakehip.Options{})
	lib := fake(t, fakehip.Options{})
	r := open(t, lib, nil)
	in := r.Imports()
	region, release, err := in.Lend("0000:02:00.0", l.handle[:], 1000, 4096)
	require.NoError(t, err)
	require.Equal(t, 1, region.Ordinal())
	dst := poisoned(4096)
	require.NoError(t, copyAll(t, r.Copier(), ports.CopyOp{Dst: dst, Src: region, Len: 4096})[0])
	require.Equal(t, -1, content.Check(dst.Bytes(), lentKey, 1000))
	require.NoError(t, release())
	require.Zero(t, lib.Imported.Load())
	for _, tt := range []struct {
		pci    string
		handle []byte
		off, n uint64
		is     error
	}{
		{"0000:09:00.0", l.handle[:], 0, 1, errors.ErrUnsupported},
		{"", l.handle[:], 0, 1, errors.ErrUnsupported},
		{"0000:01:00.0", l.handle[:63], 0, 1, domain.ErrInvalid},
		{"0000:01:00.0", l.handle[:], 0, 0, domain.ErrInvalid},
		{"0000:01:00.0", l.handle[:], lentBytes, 1, domain.ErrInvalid},
		{"0000:01:00.0", l.handle[:], 1<<64 - 1, 2, domain.ErrInvalid},
	} {
		_, _, err := in.Lend(tt.pci, tt.handle, tt.off, tt.n)
		require.ErrorIs(t, err, tt.is, "%+v", tt)
	}
	require.Zero(t, lib.Imported.Load())
}

func TestHandlesThatNameLessOrNothingAreRefused(t *testing.T) {
	l := startLender(t, fakehip.Options{})
	lib := fake(t, fakehip.Options{})
	r := open(t, lib, nil)
	in := r.Imports()
	_, err := in.Import("engine", 0, l.handle, lentBytes+1)
	var limit *domain.LimitError
	require.ErrorAs(t, err, &limit)
	require.EqualValues(t, lentBytes, limit.Limit)
	require.Zero(t, lib.Imported.Load(), "what was opened to look at it is closed")
	_, err = in.Import("engine", 0, l.handle, lentBytes)
	require.NoError(t, err)
	_, err = in.Import("engine", 0, l.handle, lentBytes+1)
	require.ErrorAs(t, err, &limit, "also when it is open already")
	_, err = in.Import("engine", 0, l.handle, 0)
	require.ErrorIs(t, err, domain.ErrInvalid)
	_, err = in.Import("engine", 9, l.handle, 1)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = in.Import("engine", 0, Handle{1, 2, 3}, 1)
	require.ErrorIs(t, err, domain.ErrInvalid)

	m, err := r.OpenMedium(MediumConfig{Bytes: 4096, PageSize: 4096})
	require.NoError(t, err)
	own, err := r.Handle(m.Buffers()[0].(ports.DeviceRegion))
	require.NoError(t, err)
	_, err = in.Import("engine", 0, own, 1)
	require.ErrorIs(t, err, domain.ErrInvalid, "a handle is of no use to who made it")
	require.NoError(t, m.Close())
	require.NoError(t, in.Close())
	require.Zero(t, in.Len())
}

func TestTheDeathOfALenderFailsCopiesAndNothingElse(t *testing.T) {
	l := startLender(t, fakehip.Options{})
	lib := fake(t, fakehip.Options{})
	r := open(t, lib, nil)
	in := r.Imports()
	region, err := in.Import("engine", 0, l.handle, lentBytes)
	require.NoError(t, err)
	l.die()
	m := deviceMemory(r, 0)
	slot := m.New(t, 4096)
	m.Write(slot, 0, filled(4096, 9).Bytes())
	dst := poisoned(4096)
	errs := copyAll(t, r.Copier(), ports.CopyOp{Dst: region, Src: slot, Len: 4096}, ports.CopyOp{Dst: dst, Src: slot, Len: 4096})
	require.Error(t, errs[0])
	require.NoError(t, errs[1])
	require.Equal(t, -1, content.Check(dst.Bytes(), 9, 0))
	require.NoError(t, in.CloseOwner("engine"))
	require.Zero(t, lib.Imported.Load())
	_, err = in.Import("engine", 0, l.handle, lentBytes)
	require.ErrorIs(t, err, domain.ErrInvalid)
}

// TestTheFirstImportOnEachDeviceIsTriedWithTheNIC, whole and once; what it said stands.
func TestTheFirstImportOnEachDeviceIsTriedWithTheNIC(t *testing.T) {
	refused := errors.New("no such thing here")
	for name, want := range map[string]error{"taken": nil, "refused": refused} {
		t.Run(name, func(t *testing.T) {
			l, other := startLender(t, fakehip.Options{}), startLender(t, fakehip.Options{})
			r := open(t, fake(t, fakehip.Options{}), nil)
			tries := 0
			r.TryOn(func(f *os.File, off, n uint64) error {
				tries++
				size, err := f.Seek(0, io.SeekEnd)
				require.NoError(t, err)
				require.EqualValues(t, []any{int64(lentBytes), uint64(0), uint64(lentBytes)}, []any{size, off, n})
				return want
			})
			in := r.Imports()
			_, release, err := in.Lend("0000:01:00.0", l.handle[:], 1000, 10)
			require.NoError(t, err)
			require.ErrorIs(t, r.ImportVerdict(0).Err, want)
			require.NoError(t, release())
			for _, h := range []Handle{l.handle, other.handle} {
				_, err = in.Import("engine", 0, h, lentBytes)
				require.NoError(t, err)
			}
			require.Equal(t, 1, tries)
			require.False(t, r.ImportVerdict(1).Tried)
			require.NoError(t, in.Close())
			_, err = in.Import("engine", 1, l.handle, lentBytes)
			require.NoError(t, err)
			require.Equal(t, 2, tries)
			require.ErrorIs(t, r.ImportVerdict(1).Err, want)
			require.Len(t, r.Notes(), 2)
			require.NoError(t, in.Close())
		})
	}
}

func TestDeviceMemoryIsExportedWhereTheRuntimeCan(t *testing.T) {
	r := open(t, fake(t, fakehip.Options{}), nil)
	region := deviceMemory(r, 0).New(t, 8192).(ports.DeviceRegion)
	f, off, err := r.DMABuf(ports.DeviceRegionOf(0, ports.DevAddrOf(region.Addr().Raw()+4000), 100))
	require.NoError(t, err)
	require.EqualValues(t, 4000, off)
	size, err := f.Seek(0, io.SeekEnd)
	require.NoError(t, err)
	require.EqualValues(t, 8192, size)
	require.NoError(t, f.Close())
	report, err := r.Report()
	require.NoError(t, err)
	require.Equal(t, "yes", report.Export.String())

	r = open(t, fake(t, fakehip.Options{WithoutDMABuf: true}), nil)
	_, _, err = r.DMABuf(deviceMemory(r, 0).New(t, 8192).(ports.DeviceRegion))
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "hipMemGetHandleForAddressRange")
	report, err = r.Report()
	require.NoError(t, err)
	require.Contains(t, report.Export.String(), "no: ")
}
