//go:build gpu && linux && cgo

package hip

const lenderVariable = "SPANPOOL_E2E_LENDER"

func lend() {}
