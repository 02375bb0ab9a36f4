package ports

import "github.com/spanpool/spanpool/domain"

//go:generate go tool mockgen -source=clock.go -destination=../mocks/clock.go -package=mocks

// Clock is CLOCK_BOOTTIME: it goes on while the machine sleeps, so that a lease cannot outlive its grantor's promise. Now never
// goes back and is safe for parallel use.
type Clock interface {
	Now() domain.Instant
}
