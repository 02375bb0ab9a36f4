package app

import (
	"slices"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// What callers and peers can make a node remember. The numbers are arbitrary, far above one per model: half of the table is for this node's
// own callers, whatever its peers do, and no peer takes more than an eighth of the rest.
const (
	maxSpaces     = 4_096
	maxPeerSpaces = 256           // of one peer, over all of its starts
	maxFarSpaces  = maxSpaces / 2 // of all peers
)

// noSpace is the number of a namespace that this node does not know: no key is in it.
const noSpace domain.Space = maxSpaces

// spaceTable gives namespaces the node's own small numbers. They are never taken back. Those that this node's callers name are known at
// once. What a peer's hello tells is a list, which is the peer's: most of it is of no use here, and part of it is what others told the
// peer. A namespace of it is known from the first put into it, and counts as that peer's.
type spaceTable struct {
	names []string
	byNS  map[string]domain.Space
	far   int // of names: known since a peer's put
}

// asker is one start of a peer as the owner sees it: the namespaces that its hello told, in the order of its numbers.
type asker struct {
	start domain.Incarnation
	names []string
	known []domain.Space // of each; noSpace: not known when last asked
	made  int            // namespaces that are known since a put of this peer's, over all of its starts
}

// checkNamespaces refuses what no node tells.
func checkNamespaces(names []string) error {
	if len(names) > maxSpaces {
		return &domain.LimitError{What: "namespaces", Value: uint64(len(names)), Limit: maxSpaces}
	}
	for _, ns := range names {
		if err := checkNamespace(ns); err != nil {
			return err
		}
	}
	return nil
}

func checkNamespace(ns string) error {
	if len(ns) > domain.MaxKeyBytes {
		return &domain.LimitError{What: "namespace bytes", Value: uint64(len(ns)), Limit: domain.MaxKeyBytes}
	}
	return nil
}

// tells takes in the namespaces of a hello.
func (a *asker) tells(names []string) {
	a.names, a.known = slices.Clone(names), make([]domain.Space, len(names))
	for i := range a.known {
		a.known[i] = noSpace
	}
}

// intern returns the number of a namespace, giving it one when it is new.
func (t *spaceTable) intern(namespace string) (domain.Space, error) {
	if s, ok := t.byNS[namespace]; ok {
		return s, nil
	}
	if len(t.names) >= maxSpaces {
		return 0, &domain.LimitError{What: "namespaces", Value: uint64(len(t.names)) + 1, Limit: maxSpaces}
	}
	if err := checkNamespace(namespace); err != nil {
		return 0, err
	}
	if t.byNS == nil {
		t.byNS = make(map[string]domain.Space)
	}
	s := domain.Space(len(t.names))
	t.names = append(t.names, namespace)
	t.byNS[namespace] = s
	return s, nil
}

// of is our number for the asker's, or noSpace; false for a key that cannot be one.
func (t *spaceTable) of(a *asker, k ports.Key) (domain.Space, bool) {
	if uint64(k.Space) >= uint64(len(a.names)) || domain.CheckKey(k.Name) != nil {
		return 0, false
	}
	known := &a.known[k.Space]
	if *known == noSpace {
		if s, ok := t.byNS[a.names[k.Space]]; ok {
			*known = s
		}
	}
	return *known, true
}

// makeFor makes the namespace of an asker's key known, for a put of its.
func (t *spaceTable) makeFor(a *asker, k ports.Key) (domain.Space, error) {
	switch {
	case a.made >= maxPeerSpaces:
		return 0, &domain.LimitError{What: "namespaces of one peer", Value: uint64(a.made) + 1, Limit: maxPeerSpaces}
	case t.far >= maxFarSpaces:
		return 0, &domain.LimitError{What: "namespaces of all peers", Value: uint64(t.far) + 1, Limit: maxFarSpaces}
	}
	s, err := t.intern(a.names[k.Space])
	if err == nil {
		a.made++
		t.far++
	}
	return s, err
}

// snapshot is what a hello tells.
func (t *spaceTable) snapshot() []string { return slices.Clone(t.names) }
