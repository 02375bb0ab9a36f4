package app

import (
	"slices"

	"github.com/spanpool/spanpool/domain"
)

// maxSpaces bounds what callers and peers can make a node remember; the number is arbitrary, far above one per model.
const maxSpaces = 4_096

// spaceTable gives namespaces the node's own small numbers. They are never taken back.
type spaceTable struct {
	names []string
	byNS  map[string]domain.Space
}

// intern returns the number of a namespace, giving it one when it is new.
func (t *spaceTable) intern(namespace string) (domain.Space, error) {
	if s, ok := t.byNS[namespace]; ok {
		return s, nil
	}
	if len(t.names) >= maxSpaces {
		return 0, &domain.LimitError{What: "namespaces", Value: uint64(len(t.names)) + 1, Limit: maxSpaces}
	}
	if len(namespace) > domain.MaxKeyBytes {
		return 0, &domain.LimitError{What: "namespace bytes", Value: uint64(len(namespace)), Limit: domain.MaxKeyBytes}
	}
	if t.byNS == nil {
		t.byNS = make(map[string]domain.Space)
	}
	s := domain.Space(len(t.names))
	t.names = append(t.names, namespace)
	t.byNS[namespace] = s
	return s, nil
}

// snapshot is what a hello tells.
func (t *spaceTable) snapshot() []string { return slices.Clone(t.names) }
