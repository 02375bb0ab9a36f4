// Package redis is the Directory on Redis or Valkey: membership and key locations, for when a static list is outgrown.
//
// It is not there yet: the constructor refuses.
package redis

import (
	"errors"
	"fmt"

	"github.com/spanpool/spanpool/ports"
)

// Dial connects to the server at addr. The error wraps errors.ErrUnsupported.
func Dial(addr string) (ports.Directory, error) {
	return nil, fmt.Errorf("dial redis directory %q: %w: this build has no Redis directory", addr, errors.ErrUnsupported)
}
