//! How much has happened in a run: counts that add up over seeds.

macro_rules! tally {
    ($(#[$about:meta])* $name:ident { $($(#[$what:meta])* $field:ident,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$what])* pub $field: u64,)*
        }

        impl std::ops::AddAssign for $name {
            fn add_assign(&mut self, other: $name) {
                $(self.$field += other.$field;)*
            }
        }
    };
}

pub(crate) use tally;
