package porttest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestACountIsDeadUntilSomeTestMovesIt(t *testing.T) {
	var c Moved
	require.Empty(t, c.Dead(nil))
	c.Note("a", 0)
	c.Note("b", 3)
	c.Note("b", 0)
	c.Note("c", 0)
	require.Equal(t, []string{"a: moved false, excused false"}, c.Dead(map[string]string{"c": "why"}))
	c.Note("a", 1)
	require.Empty(t, c.Dead(map[string]string{"c": "why"}))
	require.Equal(t, []string{"a: moved true, excused true", "c: moved false, excused false", "d: excused, and there is no such count"},
		c.Dead(map[string]string{"a": "why", "d": "why"}))
}
