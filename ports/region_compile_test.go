package ports_test

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/ports"
)

// TestMisuseOfRegionsDoesNotCompile pins what Region exists for: bytes that no CPU may touch cannot be asked for, and an
// address on a device cannot become a pointer here.
func TestMisuseOfRegionsDoesNotCompile(t *testing.T) {
	check := typeChecker(t)
	for _, tt := range []struct{ name, body, want string }{
		{"a host region has bytes", "var _ []byte = h.Bytes()", ""},
		{"both are regions", "var _, _ ports.Region = h, d", ""},
		{"a device region has an address", "var _ ports.DevAddr = d.Addr()", ""},
		{"a region says its length", "var _ uint64 = r.Len() + h.Len() + d.Len()", ""},

		{"bytes of a device region", "var _ = d.Bytes()", "d.Bytes undefined"},
		{"bytes of a region", "var _ = r.Bytes()", "r.Bytes undefined"},
		{"file of a device region", "var _ = d.File()", "d.File undefined"},
		{"address of a host region", "var _ = h.Addr()", "h.Addr undefined"},
		{"a device region for a host region", "var _ ports.HostRegion = d", "cannot use d"},
		{"a region for a host region", "var _ ports.HostRegion = r", "cannot use r"},
		{"a device region made a host region", "var _ = ports.HostRegion(d)", "cannot convert d"},
		{"a device address for a pointer", "var _ = unsafe.Pointer(a)", "cannot convert a"},
		{"a device address for an integer", "var _ = uintptr(a)", "cannot convert a"},
		{"an integer for a device address", "var _ ports.DevAddr = 4096", "cannot use 4096"},
		{"the number in a device address", "var _ = a.v", "a.v undefined"},
		{"a device address put together", "var _ = ports.DevAddr{4096}", "implicit assignment to unexported field"},
		{"bytes put into a host region", "var _ = ports.HostRegion{[]byte{}, nil}", "implicit assignment to unexported field"},
		{"arithmetic on a device address", "var _ = a + 1", "mismatched types"},
		{"a foreign region", "type x struct{}\nfunc (x) Len() uint64 { return 0 }\nfunc (x) region() {}\nvar _ ports.Region = x{}", "does not implement"},
		{"a device region in copy", "func f() { copy(h.Bytes(), d) }", "invalid copy: argument must be a slice"},
		{"a region where bytes are touched", "func f(ports.HostRegion)\nfunc g() { f(d) }", "cannot use d"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := check(tt.body)
			if tt.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tt.want)
		})
	}
}

// TestRegionIsSealed: a type of another package cannot have its method, and this package has two that do.
func TestRegionIsSealed(t *testing.T) {
	pkg, err := importer.ForCompiler(token.NewFileSet(), "source", nil).Import("github.com/spanpool/spanpool/ports")
	require.NoError(t, err)
	region := pkg.Scope().Lookup("Region").Type().Underlying().(*types.Interface)
	sealed := false
	for m := range region.Methods() {
		sealed = sealed || !m.Exported()
	}
	require.True(t, sealed, "every package could implement Region")
	var kinds []string
	for _, name := range pkg.Scope().Names() {
		if typ, ok := pkg.Scope().Lookup(name).(*types.TypeName); ok && name != "Region" && types.Implements(typ.Type(), region) {
			kinds = append(kinds, name)
		}
	}
	require.Equal(t, []string{"DeviceRegion", "HostRegion"}, kinds)
}

// TestDeviceMemoryGetsInByEmbeddingOnly shows the one hole and that it is none: what embeds a Region is one of the two inside.
func TestDeviceMemoryGetsInByEmbeddingOnly(t *testing.T) {
	type wrapped struct{ ports.Region }
	var r ports.Region = wrapped{ports.DeviceRegionOf(0, ports.DevAddrOf(4096), 8)}
	_, host := r.(ports.HostRegion)
	require.False(t, host, "code that asks for bytes asks for a HostRegion")
}

func TestDeviceRegionsOverlapWhereTheyShareMemory(t *testing.T) {
	at := func(ordinal int, a, n uint64) ports.DeviceRegion {
		return ports.DeviceRegionOf(ordinal, ports.DevAddrOf(a), n)
	}
	for _, tt := range []struct {
		a, b ports.DeviceRegion
		want bool
	}{
		{at(0, 100, 10), at(0, 100, 10), true}, {at(0, 100, 10), at(0, 109, 1), true}, {at(0, 100, 10), at(0, 110, 5), false},
		{at(0, 100, 10), at(1, 100, 10), false}, {at(0, 100, 10), at(0, 105, 0), false}, {at(0, 100, 10), at(0, 50, 200), true},
		{at(0, 1<<63, 1), at(0, 0, 1<<63), false}, {at(0, 0, 1), at(0, 1<<64-1, 1), false},
	} {
		require.Equal(t, tt.want, tt.a.Overlaps(tt.b), "%v and %v", tt.a, tt.b)
		require.Equal(t, tt.want, tt.b.Overlaps(tt.a), "%v and %v", tt.b, tt.a)
	}
}

func TestRegionsSayWhatTheyAreMadeOf(t *testing.T) {
	d := ports.DeviceRegionOf(3, ports.DevAddrOf(1<<40), 1<<33)
	require.EqualValues(t, 1<<33, d.Len())
	require.Equal(t, 3, d.Ordinal())
	require.Equal(t, ports.DevAddrOf(1<<40), d.Addr())
	require.EqualValues(t, 1<<40, d.Addr().Raw())

	b := make([]byte, 8, 16)
	f := &ports.File{FD: 7, Off: 4096}
	for _, h := range []ports.HostRegion{ports.HostRegionOf(b), ports.HostRegionOfFile(b, f)} {
		require.EqualValues(t, 8, h.Len())
		require.Same(t, &b[0], &h.Bytes()[0])
		require.Equal(t, 8, cap(h.Bytes()), "an append to a region's bytes would write behind it")
	}
	require.Nil(t, ports.HostRegionOf(b).File())
	require.Same(t, f, ports.HostRegionOfFile(b, f).File())
}

// typeChecker compiles a body in another package, in which h, d, a and r are one of each.
func typeChecker(t *testing.T) func(body string) error {
	const header = `package p
import ("unsafe"; "github.com/spanpool/spanpool/ports")
var _ unsafe.Pointer
var h ports.HostRegion
var d ports.DeviceRegion
var a ports.DevAddr
var r ports.Region
`
	fset := token.NewFileSet()
	importer := importer.ForCompiler(fset, "source", nil)
	return func(body string) error {
		f, err := parser.ParseFile(fset, "p.go", header+body, 0)
		require.NoError(t, err)
		_, err = (&types.Config{Importer: importer}).Check("p", fset, []*ast.File{f}, nil)
		return err
	}
}
