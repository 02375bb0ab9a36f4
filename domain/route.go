package domain

// LocalityMode is the configuration's locality: how far reads make objects local.
type LocalityMode uint8

// The modes: Fill gives every fetch a slot; PullOnly only the reads that tile the object, the rest by the pull (what the
// reference does); Off behaves as a node without a medium to install into.
const (
	LocalityFill LocalityMode = iota
	LocalityPullOnly
	LocalityOff
)

// Route is which destination a fetch takes.
type Route uint8

// The routes. RouteNone is a key that no route can serve: "no space".
const (
	RouteNone Route = iota
	RouteSlot
	RouteDirect
	RouteArena
)

// SlotWish is what WantsSlot decides on.
type SlotWish struct {
	Mode       LocalityMode
	HasMedium  bool // a medium to install into
	Tiles      bool // the ranges tile the object
	MayInstall bool // false for Get and BatchGet with cache_remote_fetches off: they may read a filling slot and make none
}

// WantsSlot says whether a fetch should look for a filling slot, and whether it may make one (design.md section 5).
func WantsSlot(w SlotWish) (use, create bool) {
	if !CanInstallLocally(w.HasMedium, w.Mode) || w.Mode == LocalityPullOnly && !w.Tiles {
		return false, false
	}
	return true, w.MayInstall
}

// RouteChoice is what DecideRoute decides on, after the allocation.
type RouteChoice struct {
	HasSlot       bool // a filling slot of this version is there, or was allocated
	Registered    bool // the caller's memory is registered with the transport
	ArenaCapacity uint64
}

// DecideRoute picks slot, then direct, then arena, then none. A refused slot falls to the next row at once.
func DecideRoute(c RouteChoice) Route {
	switch {
	case c.HasSlot:
		return RouteSlot
	case c.Registered:
		return RouteDirect
	case c.ArenaCapacity > 0:
		return RouteArena
	}
	return RouteNone
}

// Locality is how a fetched key becomes local: exactly one way per fetched key.
type Locality uint8

// The ways.
const (
	LocalNot       Locality = iota // not at all
	LocalBySlot                    // its slot is complete: commit, free
	LocalFromArena                 // the slice is the object: copy, commit, free
	LocalByPull                    // the pull fetches what is missing (readers may overtake it)
	LocalByExtents                 // readers may complete the slot; no pull admitted
)

// LocalityCase is what DecideLocality decides on.
type LocalityCase struct {
	Route      Route
	Whole      bool // slot: all extents are held or claimed by this call; arena: the slice is the whole object in object order
	CanInstall bool // CanInstallLocally, and the call may install
	Admits     bool // LocalityPrefetchAdmits
}

// DecideLocality is rules.md section 3 as a table.
func DecideLocality(c LocalityCase) Locality {
	switch {
	case c.Route == RouteSlot && c.Whole:
		return LocalBySlot
	case c.Route == RouteSlot && c.Admits:
		return LocalByPull
	case c.Route == RouteSlot: // the slot is there already: nobody asks again whether it may be
		return LocalByExtents
	case c.Route == RouteNone || !c.CanInstall:
		return LocalNot
	case c.Route == RouteArena && c.Whole:
		return LocalFromArena
	case c.Admits:
		return LocalByPull
	}
	return LocalNot
}

// CanInstallLocally asks whether there is a medium to install into, and nothing else.
func CanInstallLocally(hasMedium bool, mode LocalityMode) bool {
	return hasMedium && mode != LocalityOff
}

// Admission is the size rule of the pull.
type Admission struct {
	Kind     AdmissionKind
	MaxBytes uint64 // of AdmitSize; zero: 16 MiB
}

// AdmissionKind is size (default), always, never.
type AdmissionKind uint8

// The kinds.
const (
	AdmitSize AdmissionKind = iota
	AdmitAlways
	AdmitNever
)

const defaultAdmitBytes = 16 << 20

// LocalityPrefetchAdmits asks the switch (ranged_locality_prefetch) and the admission. Only the pull asks it.
func LocalityPrefetchAdmits(prefetch bool, a Admission, size uint64) bool {
	if !prefetch {
		return false
	}
	switch a.Kind {
	case AdmitAlways:
		return true
	case AdmitSize:
		return size <= orElse(a.MaxBytes, defaultAdmitBytes)
	}
	return false
}
