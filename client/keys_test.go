package client

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// vectors were made by another program in another language: neither side can drift with the other.
type vectors struct {
	Namespaces []struct {
		Model, Revision, Dtype, Layout, Extra, Fingerprint string
		PageSize                                           uint64 `json:"page_size"`
		TPSize                                             uint64 `json:"tp_size"`
		PPSize                                             uint64 `json:"pp_size"`
		CPSize                                             uint64 `json:"cp_size"`
	}
	Prompts []struct {
		Namespace string
		Tokens    []uint32
		PageSize  int `json:"page_size"`
		Keys      []string
	}
}

func TestKeysAreThoseOfTheVectors(t *testing.T) {
	b, err := os.ReadFile("../testdata/keys.json")
	require.NoError(t, err)
	var v vectors
	require.NoError(t, json.Unmarshal(b, &v))
	require.Greater(t, len(v.Namespaces), 5)
	seen := map[string]bool{}
	for _, n := range v.Namespaces {
		got := Namespace{Model: n.Model, Revision: n.Revision, Dtype: n.Dtype, Layout: n.Layout, PageSize: n.PageSize, TPSize: n.TPSize,
			PPSize: n.PPSize, CPSize: n.CPSize, Extra: n.Extra}.Fingerprint()
		require.Equal(t, n.Fingerprint, got, n)
		require.False(t, seen[got], "two namespaces with one name: %v", n)
		seen[got] = true
	}
	require.Greater(t, len(v.Prompts), 5)
	for _, p := range v.Prompts {
		got := PromptKeys(p.Namespace, p.Tokens, p.PageSize)
		require.Len(t, got, len(p.Tokens)/p.PageSize)
		require.ElementsMatch(t, p.Keys, got)
		require.Equal(t, append([]string{}, p.Keys...), got)
	}
}

func TestAKeyStandsForAllBeforeIt(t *testing.T) {
	a, b := PromptKeys("n", []uint32{1, 2, 3, 4}, 2), PromptKeys("n", []uint32{9, 2, 3, 4}, 2)
	require.Len(t, a, 2)
	require.NotEqual(t, a[0], b[0])
	require.NotEqual(t, a[1], b[1], "the same page after another one is another key")
	require.Equal(t, a[:1], PromptKeys("n", []uint32{1, 2, 8, 8}, 2)[:1])
	require.Empty(t, PromptKeys("n", []uint32{1}, 0))
}
