// Package verbs is libibverbs, called by its own names: no policy, no goroutine, no lock. It is there behind the build tag rdma, which
// make sets where the library's header is; elsewhere it is empty.
//
// Only integers and C memory cross into C. A call that submits or takes many things crosses once.
package verbs
