package domain

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWantsSlotRows(t *testing.T) {
	for _, c := range []struct {
		w           SlotWish
		use, create bool
	}{
		{SlotWish{LocalityFill, false, false, false}, false, false},
		{SlotWish{LocalityFill, false, true, true}, false, false},
		{SlotWish{LocalityPullOnly, false, true, true}, false, false},
		{SlotWish{LocalityFill, true, false, false}, true, false},
		{SlotWish{LocalityFill, true, false, true}, true, true},
		{SlotWish{LocalityFill, true, true, false}, true, false},
		{SlotWish{LocalityFill, true, true, true}, true, true},
		{SlotWish{LocalityPullOnly, true, false, false}, false, false},
		{SlotWish{LocalityPullOnly, true, false, true}, false, false},
		{SlotWish{LocalityPullOnly, true, true, false}, true, false},
		{SlotWish{LocalityPullOnly, true, true, true}, true, true},
		{SlotWish{LocalityOff, true, false, true}, false, false},
		{SlotWish{LocalityOff, true, true, true}, false, false},
	} {
		t.Run(fmt.Sprintf("%+v", c.w), func(t *testing.T) {
			use, create := WantsSlot(c.w)
			require.Equal(t, [2]bool{c.use, c.create}, [2]bool{use, create}, "use, create")
		})
	}
}

func TestDecideRouteRows(t *testing.T) {
	for _, c := range []struct {
		choice RouteChoice
		want   Route
	}{
		{RouteChoice{false, false, 0}, RouteNone},
		{RouteChoice{false, false, 64}, RouteArena},
		{RouteChoice{false, true, 0}, RouteDirect},
		{RouteChoice{false, true, 64}, RouteDirect},
		{RouteChoice{true, false, 0}, RouteSlot},
		{RouteChoice{true, false, 64}, RouteSlot},
		{RouteChoice{true, true, 0}, RouteSlot},
		{RouteChoice{true, true, 64}, RouteSlot},
	} {
		t.Run(fmt.Sprintf("%+v", c.choice), func(t *testing.T) {
			require.Equal(t, c.want, DecideRoute(c.choice))
		})
	}
}

func TestDecideLocalityRows(t *testing.T) {
	const no, yes = false, true
	for _, c := range []struct {
		LocalityCase
		want Locality
	}{
		// Route, Whole, CanInstall, Admits
		{LocalityCase{RouteNone, no, no, no}, LocalNot},
		{LocalityCase{RouteNone, yes, yes, yes}, LocalNot},

		{LocalityCase{RouteSlot, no, no, no}, LocalByExtents},
		{LocalityCase{RouteSlot, no, no, yes}, LocalByPull},
		{LocalityCase{RouteSlot, no, yes, no}, LocalByExtents},
		{LocalityCase{RouteSlot, no, yes, yes}, LocalByPull},
		{LocalityCase{RouteSlot, yes, no, no}, LocalBySlot},
		{LocalityCase{RouteSlot, yes, no, yes}, LocalBySlot},
		{LocalityCase{RouteSlot, yes, yes, no}, LocalBySlot},
		{LocalityCase{RouteSlot, yes, yes, yes}, LocalBySlot},

		{LocalityCase{RouteDirect, no, no, no}, LocalNot},
		{LocalityCase{RouteDirect, no, no, yes}, LocalNot},
		{LocalityCase{RouteDirect, no, yes, no}, LocalNot},
		{LocalityCase{RouteDirect, no, yes, yes}, LocalByPull},
		{LocalityCase{RouteDirect, yes, no, yes}, LocalNot},
		{LocalityCase{RouteDirect, yes, yes, no}, LocalNot},
		{LocalityCase{RouteDirect, yes, yes, yes}, LocalByPull},

		{LocalityCase{RouteArena, no, no, no}, LocalNot},
		{LocalityCase{RouteArena, no, no, yes}, LocalNot},
		{LocalityCase{RouteArena, no, yes, no}, LocalNot},
		{LocalityCase{RouteArena, no, yes, yes}, LocalByPull},
		{LocalityCase{RouteArena, yes, no, no}, LocalNot},
		{LocalityCase{RouteArena, yes, no, yes}, LocalNot},
		{LocalityCase{RouteArena, yes, yes, no}, LocalFromArena},
		{LocalityCase{RouteArena, yes, yes, yes}, LocalFromArena},
	} {
		t.Run(fmt.Sprintf("%+v", c.LocalityCase), func(t *testing.T) {
			require.Equal(t, c.want, DecideLocality(c.LocalityCase))
		})
	}
}

func TestCanInstallLocallyRows(t *testing.T) {
	for _, c := range []struct {
		hasMedium bool
		mode      LocalityMode
		want      bool
	}{
		{false, LocalityFill, false},
		{false, LocalityPullOnly, false},
		{false, LocalityOff, false},
		{true, LocalityFill, true},
		{true, LocalityPullOnly, true},
		{true, LocalityOff, false},
	} {
		require.Equal(t, c.want, CanInstallLocally(c.hasMedium, c.mode), "medium %v, mode %d", c.hasMedium, c.mode)
	}
}

func TestLocalityPrefetchAdmitsRows(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		prefetch bool
		a        Admission
		size     uint64
		want     bool
	}{
		{false, Admission{}, 1, false},
		{false, Admission{Kind: AdmitAlways}, 1, false},
		{true, Admission{}, 16 * mib, true},
		{true, Admission{}, 16*mib + 1, false},
		{true, Admission{MaxBytes: 100}, 100, true},
		{true, Admission{MaxBytes: 100}, 101, false},
		{true, Admission{Kind: AdmitAlways}, MaxObjectSize, true},
		{true, Admission{Kind: AdmitAlways, MaxBytes: 100}, 101, true},
		{true, Admission{Kind: AdmitNever}, 1, false},
		{true, Admission{Kind: AdmitNever, MaxBytes: 100}, 1, false},
		{true, Admission{Kind: AdmitNever + 1}, 1, false},
	} {
		require.Equal(t, c.want, LocalityPrefetchAdmits(c.prefetch, c.a, c.size), "%+v", c)
	}
}
